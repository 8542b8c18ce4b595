"""The number of bytes that a loader may use, and that it handles at once."""

from __future__ import annotations

from gdsload.engine.limits import Limits, gatherers
from gdsload.errors import BudgetError
from gdsload.loader.plan import LoaderPlan
from gdsload.order import Schedule
from gdsload.system.units import format_bytes

_LEAST_GROUP_BYTES, _MOST_GROUP_BYTES = 24 * 2**20, 64 * 2**20
"""Bytes of a group of batches, for scattered rows of mapped shards; for others the least, as reads contain more than is
wanted. 64 MiB are about 8 ms of gathering by two threads. Each group costs more than 1 ms of Python, which a thread may
have to wait for in the other one, and longer where the system has taken the processor from the thread that holds the
interpreter lock. More threads get smaller groups, so that by default ``Memory(prefetch=)`` has room for two of each;
and a batch that is kept holds the memory of its group."""
_GROUP_BYTES_IN_ORDER = 8 * 2**20
"""Rows in order are copied at the speed of memory, and need little planning: batches under way should stay within a
cache of some 32 MiB."""
_GROUP_BYTES_ON_GPU, _MOST_LANDING_BYTES = 128 * 2**20, 256 * 2**20
"""Little more than 2 ms at the speed of PCIe 5: planning and gathering a group cost up to 1 ms of Python. Where its
bytes land in the arena, its reads cost as much again, and the processor that all of this takes may be half as fast.
Then budgets should have room for four: one is gathered while another is read and a third is planned."""

_OBJECTS_BYTES, _FIELD_BYTES, _SMALL_BYTES = 600, 300, 2**16
"""Bytes that Python's and torch's objects of a batch take, and of each field of it, as measured on the CPU; and the
size of a batch from which that does not matter."""
_IMAGES_OF_A_GROUP = 768
"""A GPU's decoder gets the images of a group in one call, and each call waits for the interpreter lock several times:
few calls are better. By default ``Memory(prefetch=)`` has room for two groups of 224 x 224 pixels in 16 bits beside the
one that the consumer has: one is decoded while the bytes of the next one are gathered."""


def limits_of(plan: LoaderPlan, schedule: Schedule) -> Limits:
    """The limits of an epoch; BudgetError if the windows that must be in memory at once do not fit the arena."""
    order, mean, arena_bytes = plan.order, plan.sample_bytes, plan.arena_bytes
    # A window ends with its lane.
    window_bytes = int(mean * min(order.window, -(-schedule.samples // order.lanes)))
    # A slice of the global batch meets its own share of the lanes, and one more where it begins inside a lane.
    lanes = min(order.lanes, -(-order.lanes // schedule.world_size) + 1)
    needed = (lanes + 1) * window_bytes
    if not plan.in_place and order.window and needed > arena_bytes:
        raise BudgetError(
            f"the arena is {format_bytes(arena_bytes)}, but {lanes} lanes and one window read ahead, of "
            f"{format_bytes(window_bytes)} each, need {format_bytes(needed)}",
            remedy=f"Pass `memory=gdsload.Memory(arena={needed})`, or `shuffle=gdsload.BlockShuffle(window=..., "
            f"lanes=...)` with fewer lanes (here {order.lanes}) or a smaller window (here {order.window} samples).",
        )
    nbytes = int(plan.batch_sample_bytes * schedule.batch_size)
    sizes_vary = plan.source is not None and plan.source.batch_size is None
    return Limits(
        plan.prefetch_bytes,
        arena_bytes,
        _group_bytes(plan),
        nbytes if nbytes >= _SMALL_BYTES else nbytes + _OBJECTS_BYTES + _FIELD_BYTES * len(plan.form.fields),
        window_bytes,
        int(plan.batch_sample_bytes) if sizes_vary else 0,
        landing_bytes=_landing_bytes(plan),
        one_by_one=plan.options.sample_transform is not None,  # its samples are shared out among threads
        read_bytes=min(int(mean * schedule.batch_size), nbytes) if plan.form.decode else 0,
    )


def _landing_bytes(plan: LoaderPlan) -> int:
    """Bytes of a group for a GPU whose bytes land in its memory; 0: as of any other group."""
    if plan.placement != "gpu" or plan.options.sample_transform is not None or plan.form.decode:
        return 0
    return max(min(plan.prefetch_bytes // 4, plan.arena_bytes // 4, _MOST_LANDING_BYTES), _GROUP_BYTES_ON_GPU)


def _group_bytes(plan: LoaderPlan) -> int:
    if plan.placement == "gpu":
        return int(_IMAGES_OF_A_GROUP * plan.batch_sample_bytes) if plan.form.decode else _GROUP_BYTES_ON_GPU
    if plan.order.shuffle == "sequential":
        return _GROUP_BYTES_IN_ORDER
    if not plan.in_place:
        return _LEAST_GROUP_BYTES
    share = plan.prefetch_bytes // (2 * gatherers(copies=plan.copies_ahead))
    return max(_LEAST_GROUP_BYTES, min(share, _MOST_GROUP_BYTES))
