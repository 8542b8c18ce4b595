"""The choice of the source that makes an epoch's batches, and of the threads that run it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gdsload.backends.base import Backend
from gdsload.engine.assemble import BatchMaker
from gdsload.engine.gpu import position_kernels
from gdsload.engine.gpu.assemble_device import DeviceAssembler
from gdsload.engine.landed import LandedSource
from gdsload.engine.limits import MOST_BATCHES, Limits, Runner, gatherers
from gdsload.engine.prefetch import Prefetcher
from gdsload.engine.resident import ResidentGather
from gdsload.engine.resident_source import ResidentSource, VramSource
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Job
from gdsload.engine.window_source import WindowSource

__all__ = ["prefetch"]

_IN_VRAM = Runner(threads=0, most_groups=1)
_SYNCHRONOUS = Runner(threads=0, most_groups=1, most_batches=1)
_PLANNED_BY_GPU = Runner(threads=0, tapers=True)
_BY_THREADS_FOR_GPU = position_kernels.MOST_BATCHES
"""Batches of a group that threads make for a GPU: of 1 MiB as many as the bytes of a group allow, and no more than one
launch takes. A consumer that makes them itself would have the GPU wait for so many."""


def prefetch(
    job: Job, backend: Backend, maker: BatchMaker, *, limits: Limits, start: int, stats: LoaderStats, ahead: bool
) -> Prefetcher:
    """The prefetcher of an epoch.

    Args:
        job: what to deliver.
        backend: what reads the bytes.
        maker: what makes batches of them.
        limits: what may be used.
        start: the first step.
        stats: where time is counted.
        ahead: whether batches are made ahead of the consumer; else its thread makes each when it asks for it.
    """
    gather = ResidentGather.of(job, backend, maker)
    source: LandedSource | VramSource
    source = WindowSource.of(job, backend, maker, stats) or LandedSource(job, backend, maker, stats)
    most_batches = MOST_BATCHES if maker.takes_processor else _BY_THREADS_FOR_GPU
    runner = Runner(_threads(backend, maker), most_batches=most_batches)
    if gather is not None and isinstance(maker, DeviceAssembler):
        source = ResidentSource(gather, job, backend, maker, stats)
        plain = job.transform is None
        if gather.ready():
            if not gather.over_pcie and not gather.ids_from_host:
                source = VramSource(gather, job, maker.device, stats)
                runner = _IN_VRAM
            elif plain and gather.planned_by_gpu:
                runner = _PLANNED_BY_GPU
            elif not gather.ids_from_host:
                # One thread queues and awaits all groups: several would wait for each other at the driver's locks.
                runner = replace(runner, threads=1)
    if not ahead:
        runner = _SYNCHRONOUS
    if runner.threads:
        runner = replace(runner, prepare=partial(_prepare, maker, gather))
    else:
        _prepare(maker, gather)
    if job.transform is not None and not isinstance(source, VramSource):
        maker.follow()  # what it computes with may still be being made
    return Prefetcher(source, job.steps, limits=limits, start=start, stats=stats, runner=runner)


def _prepare(maker: BatchMaker, gather: ResidentGather | None) -> None:
    """Begin to make ready what later batches are made with, and what they are once all shards can be addressed."""
    maker.prepare()
    if gather is not None and not gather.ready():
        gather.prepare()


def _threads(backend: Backend, maker: BatchMaker) -> int:
    """The number of threads that make groups.

    Where gathering takes a processor, the consumer is one of the `gatherers`; there is one more thread where they wait
    for copies, too. On a GPU they only wait for it, and wait for each other at the interpreter lock: a second one pays
    where gathers may go over the link, and so take long.
    """
    if maker.takes_processor:
        copies = maker.onto is not None
        return gatherers(copies=copies) - (not copies)
    if maker.images is not None:
        return 3  # one has its images decoded, the next one's are ready for that, and one gathers, or runs the kernel
    return 2 if backend.addressable else 1
