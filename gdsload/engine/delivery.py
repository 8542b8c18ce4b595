"""Which way the batches of an epoch are made."""

from __future__ import annotations

from dataclasses import replace

from gdsload.backends.base import Backend
from gdsload.engine.ahead import AheadPipeline
from gdsload.engine.assemble import BatchMaker
from gdsload.engine.assemble_device import DeviceAssembler
from gdsload.engine.direct import Direct
from gdsload.engine.groups import Limits
from gdsload.engine.pipeline import Pipeline
from gdsload.engine.ready import Deliverer
from gdsload.engine.resident import ResidentPipeline
from gdsload.engine.stage import Job
from gdsload.engine.stats import LoaderStats

__all__ = ["deliver"]

_GROUP_BYTES = 128 * 2**20
"""What the GPU plans by itself costs the host the same for a large group as for a small one, and the consumer pays.
Of groups that are queued ahead, `prefetch_bytes` has room for two of these by default."""


def deliver(
    job: Job, backend: Backend, maker: BatchMaker, *, limits: Limits, start: int, stats: LoaderStats
) -> Deliverer:
    """Start delivering an epoch.

    Args:
        job: what to deliver.
        backend: what brings the bytes.
        maker: what makes batches of them.
        limits: what may be used.
        start: the first step.
        stats: where time is counted.
    """
    direct = Direct.of(job, backend, maker)
    larger = replace(limits, group_bytes=max(limits.group_bytes, _GROUP_BYTES))
    if direct is not None and isinstance(maker, DeviceAssembler) and direct.ready():
        if not direct.over_pcie:
            return ResidentPipeline(direct, start=start, stats=stats, group=larger.group(), device=maker.device)
        if job.transform is None and direct.planned_by_gpu:
            return AheadPipeline(job, backend, maker, limits=larger, start=start, stats=stats, direct=direct)
    return Pipeline(job, backend, maker, limits=limits, start=start, stats=stats, direct=direct)
