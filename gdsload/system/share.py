"""The share of its host that a process may take, where several ranks run on it.

Each rank has its own loader, and none knows of the others'. Defaults that are "all there is" would be taken by each, so
they are shares where the launcher has said how many ranks there are: torchrun does, in LOCAL_WORLD_SIZE.
"""

from __future__ import annotations

import os


def local_ranks() -> int:
    """Ranks on this host, as far as the launcher has said; else 1."""
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(int(said), 1) if said.isascii() and said.isdecimal() and len(said) < 10 else 1


def processors() -> int:
    """The number of processors that this process's threads may keep busy: an equal share of the host's among ranks.

    A process that is bound to fewer has those: they are shared out already.
    """
    mine, ranks = len(os.sched_getaffinity(0)), local_ranks()
    return mine if ranks == 1 else min(mine, max((os.cpu_count() or mine) // ranks, 1))
