"""Samples that come late in an epoch: while they are not in the page cache, the epoch is a cold one."""

from __future__ import annotations

import numpy as np

from gdsload.tools.bench.bench_plan import BenchPlan
from gdsload.tools.bench.by_hand import StoredRows
from gdsload.tools.bench.cache_state import resident_share

_BATCHES, _SAMPLES_OF_A_BATCH = 16, 4
_WARM_SHARE = 0.1


class LateSamples:
    """Some samples of the last quarter of an epoch, with the pages of their largest columns.

    What a row reads ahead of itself is not among them, but what the kernel reads around its samples may be.
    """

    def __init__(self, plan: BenchPlan, rows: StoredRows, epoch: int) -> None:
        random = np.random.default_rng(epoch)
        steps = random.integers(plan.batches * 3 // 4, plan.batches, _BATCHES).tolist()
        ids = np.concatenate([random.choice(some, _SAMPLES_OF_A_BATCH) for some in plan.ids(epoch, steps)])
        columns, _ = rows.columns(ids)
        largest = max(columns, key=lambda column: column.extents.total_bytes).extents
        middle = largest.offset + largest.nbytes // 2
        self._places = list(zip(map(rows.source, largest.file.tolist()), middle.tolist(), strict=True))

    def warm(self) -> bool:
        """Return whether more than a tenth of them are in the page cache."""
        return resident_share(self._places) > _WARM_SHARE
