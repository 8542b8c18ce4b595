"""Which way the batches of an epoch are made."""

from __future__ import annotations

from gdsload.backends.base import Backend
from gdsload.engine.ahead import AheadPipeline
from gdsload.engine.assemble import BatchMaker
from gdsload.engine.direct import Direct
from gdsload.engine.gpu.assemble_device import DeviceAssembler
from gdsload.engine.groups import Limits
from gdsload.engine.pipeline import Pipeline
from gdsload.engine.ready import Deliverer
from gdsload.engine.resident import ResidentPipeline
from gdsload.engine.stage import Job
from gdsload.engine.stats import LoaderStats

__all__ = ["deliver"]


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
    if direct is not None and isinstance(maker, DeviceAssembler) and direct.ready():
        plain = job.transform is None
        if not direct.over_pcie and not direct.told:
            # What a transform makes of a group is there at once, and may be larger.
            group = limits.group_on_gpu() if plain else limits.group()
            return ResidentPipeline(direct, start=start, stats=stats, group=group, device=maker.device)
        if plain and direct.planned_by_gpu:
            return AheadPipeline(job, backend, maker, limits=limits, start=start, stats=stats, direct=direct)
    return Pipeline(job, backend, maker, limits=limits, start=start, stats=stats, direct=direct)
