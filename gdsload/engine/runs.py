"""Samples as runs of consecutive ones: to plan many samples one by one takes longer than to fetch them."""

from __future__ import annotations

import numpy as np

from gdsload.system.arrays import IntArray

_RUN_SAMPLES, _RUN_BYTES, _LONG_RUN_BYTES = 64, 64 * 1024, 2**20
"""Mean length of runs of consecutive samples from which they are handled as runs: so many samples and bytes, or so many
bytes of fewer samples. Shorter runs are not planned any faster, and backends fetch rows of one length faster than many
runs of different lengths."""


def lie_in_runs(ids: IntArray, sample_bytes: int) -> bool:
    """Return whether samples are better handled as runs, in the order given."""
    sample_bytes = max(sample_bytes, 1)
    fewest = max(min(_RUN_SAMPLES, -(-_LONG_RUN_BYTES // sample_bytes)), _RUN_BYTES // sample_bytes, 2)
    too_many = -(-len(ids) // fewest)
    # The first few ids show whether they are shuffled.
    return not any(np.count_nonzero(some[1:] != some[:-1] + 1) >= too_many for some in (ids[: too_many + 1], ids))


def runs_of(ids: IntArray, sample_bytes: int) -> IntArray | None:
    """Ids, at least one, as runs: the first id and the one after the last, ``[runs, 2]``; None if they are too many."""
    if not lie_in_runs(ids, sample_bytes):
        return None
    broken = (ids[1:] != ids[:-1] + 1).nonzero()[0]
    bounds = np.empty((len(broken) + 1, 2), np.int64)
    bounds[0, 0], bounds[1:, 0] = ids[0], ids[broken + 1]
    bounds[-1, 1], bounds[:-1, 1] = ids[-1] + 1, ids[broken] + 1
    return bounds
