"""The share that a rank takes of a host that it shares with others."""

import os

import pytest

from gdsload.system.share import local_ranks, processors


@pytest.mark.parametrize(
    ("allowed", "said", "ranks", "share"),
    [
        (64, None, 1, 64),
        (5, None, 1, 5),
        (64, "6", 6, 10),
        (64, "100", 100, 1),
        (8, "8", 8, 8),  # bound to its share already
        (3, "8", 8, 3),
        *[(64, said, 1, 64) for said in ("", "0", "-2", "eight", "1e1", "²", "9" * 5000)],
    ],
)
def test_processors_are_shared_out(monkeypatch, allowed, said, ranks, share):
    """On a host of 64 processors, by what the launcher says, unless this process is bound to its share already."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(allowed)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if said is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", said)
    assert (local_ranks(), processors()) == (ranks, share)
