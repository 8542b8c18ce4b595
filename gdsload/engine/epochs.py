"""The route of an epoch: the source that makes its batches, the threads that run it, and why."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gdsload.backends.base import Backend
from gdsload.engine.assemble import BatchMaker
from gdsload.engine.gpu.assemble_device import DeviceAssembler
from gdsload.engine.landed import LandedSource
from gdsload.engine.limits import MOST_BATCHES, Limits, Runner, gatherers
from gdsload.engine.prefetch import Prefetcher
from gdsload.engine.resident import ResidentGather
from gdsload.engine.resident_source import ResidentSource, VramSource
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Job
from gdsload.engine.window_source import WindowSource
from gdsload.kernels import position_kernels

_IN_VRAM = Runner(threads=0, most_groups=1, at_once=True)
_SYNCHRONOUS = Runner(threads=0, most_groups=1, most_batches=1)
_PLANNED_BY_GPU = Runner(threads=0, tapers=True)
_BY_THREADS_FOR_GPU = position_kernels.MOST_BATCHES
"""Batches of a group that threads make for a GPU: of 1 MiB as many as the bytes of a group allow, and no more than one
launch takes. A consumer that makes them itself would have the GPU wait for so many."""


def prefetch(
    job: Job, backend: Backend, maker: BatchMaker, *, limits: Limits, start: int, stats: LoaderStats, ahead: bool
) -> Prefetcher:
    """The prefetcher of an epoch. If not `ahead`, the consumer's thread makes each batch when it asks for it."""
    gather = ResidentGather.of(job, backend, maker)
    source, runner = route(job, backend, maker, gather, stats)
    if not ahead:
        runner = replace(_SYNCHRONOUS, reason=f"{runner.reason}; each batch when it is asked for, by that thread")
    if runner.threads:
        runner = replace(runner, prepare=partial(_prepare, maker, gather))
    else:
        _prepare(maker, gather)
    if job.transform is not None and not isinstance(source, VramSource):
        maker.follow()  # what it computes with may still be being made
    return Prefetcher(source, job.steps, limits=limits, start=start, stats=stats, runner=runner)


def route(
    job: Job, backend: Backend, maker: BatchMaker, gather: ResidentGather | None, stats: LoaderStats
) -> tuple[LandedSource | VramSource, Runner]:
    """The source of an epoch's batches, and what runs it: decided here alone, once an epoch.

    `gather` is None where batches are not gathered out of what the GPU can address.
    """
    most_batches = MOST_BATCHES if maker.takes_processor else _BY_THREADS_FOR_GPU
    threads = Runner(_threads(backend, maker), most_batches=most_batches)
    if gather is None or not isinstance(maker, DeviceAssembler):
        if windows := WindowSource.of(job, backend, maker, stats):
            return windows, replace(threads, reason="windows are read, in which the GPU finds the samples")
        by = "processors" if maker.takes_processor else "the GPU"
        source = LandedSource(job, backend, maker, stats)
        return source, replace(threads, reason=f"samples are read, and gathered by {by}")
    source = ResidentSource(gather, job, backend, maker, stats)
    every = "the GPU gathers from all shards"
    if not gather.ready():
        return source, replace(threads, reason=f"samples are read, until {every}")
    if not (gather.over_pcie or gather.ids_from_host):
        in_vram = VramSource(gather, job, maker.device, stats)
        return in_vram, replace(_IN_VRAM, reason="the GPU gathers from its own memory, on the stream that is current")
    if job.transform is None and gather.planned_by_gpu:
        return source, replace(_PLANNED_BY_GPU, reason=f"{every}, and the consumer queues that")
    if gather.ids_from_host:
        return source, replace(threads, reason=f"{every} the samples that threads name")
    # One thread queues and awaits all groups: several would wait for each other at the driver's locks.
    return source, replace(threads, threads=1, reason=f"{every}, and one thread queues that")


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
