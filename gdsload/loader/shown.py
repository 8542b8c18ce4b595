"""The description of a loader: its dataset, options, backend and counters."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch.utils.data import ConcatDataset, Subset

from gdsload.backends.keep import default_register_bytes
from gdsload.loader.dataset import ShardDataset
from gdsload.loader.described import brief, entries_html, entries_text
from gdsload.loader.options import Memory, Verify
from gdsload.loader.plan import LoaderPlan
from gdsload.system.units import counted, format_bytes

if TYPE_CHECKING:
    from gdsload.loader.loader import DataLoader

_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = 60


def loader_text(loader: DataLoader) -> str:
    """The loader as lines of text: options that differ from the defaults, order, backend, budgets, counters."""
    return entries_text(*_entries(loader))


def loader_html(loader: DataLoader) -> str:
    """The same as a table for notebooks."""
    return entries_html(*_entries(loader))


def _entries(loader: DataLoader) -> tuple[str, list[tuple[str, str]]]:
    """A title, and the entries below it: a name and a text each."""
    plan, defaults = loader._plan, loader._defaults  # noqa: SLF001 - these functions are its methods
    order, status, stats = plan.order, loader.backend, loader.stats
    asked = "" if status.asked == status.chosen else f" (asked for {status.asked})"
    budgets = f"{format_bytes(plan.prefetch_bytes)} for batches ahead, {format_bytes(plan.arena_bytes)} arena"
    found = [
        ("options", ", ".join(_given(plan, defaults)) or "all defaults"),
        ("order", f"{order.shuffle} ({order.reason}), seed {loader.seed}"),
        ("device", str(plan.device)),
        ("backend", f"{status.chosen}{asked}: {status.answer or status.reason}"),
        ("memory", budgets),
        ("later", f"epochs from {later(plan)}"),
    ]
    if stats.batches:
        found.append(("so far", str(stats)))
    return f"{type(loader).__name__} of {_dataset(plan.dataset)}", found


def _given(plan: LoaderPlan, defaults: Mapping[str, object]) -> list[str]:
    """The options that differ from the defaults, as Python code."""
    said = []
    for name, default in defaults.items():
        value = getattr(plan.options, name, default)
        if not _is(value, default):
            said.append(f"{name}={_value(value)}")
    return said


def _is(value: object, default: object) -> bool:
    """Return whether an option has its default value; objects other than plain values never do."""
    if value is default or value == () or value in (Memory(), Verify("off")):
        return True
    return isinstance(value, bool | int | str) and type(value) is type(default) and value == default


def _value(value: Any) -> str:
    """An option's value as short text: functions and modules by their names."""
    if isinstance(value, Memory):
        given = ((name, getattr(value, name)) for name in ("prefetch", "arena", "registered", "vram", "ram"))
        return f"Memory({', '.join(f'{name}={one!r}' for name, one in given if one is not None)})"
    if isinstance(value, tuple) and all(map(callable, value)):
        return ", ".join(map(_value, value)) if len(value) == 1 else f"[{', '.join(map(_value, value))}]"
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__name__))
    return " ".join(_SHORT.repr(value).split())


def later(plan: LoaderPlan) -> str:
    """The place that the epochs after the first one read from, in words."""
    request, nbytes = plan.backend, int(plan.sample_bytes * len(plan.selected))
    if plan.keeps_images:
        return "decoded images that are kept"
    if plan.in_vram:
        return "VRAM, as far as it has room"
    if plan.placement == "host" or request.backend == "mapped":
        return "the page cache, as far as the system keeps it"
    room = default_register_bytes() if plan.registers_by_default else request.register_bytes
    if request.backend != "auto" or not request.keep or not plan.mapped or not room:
        return "the drive"
    if nbytes <= room:
        return f"memory: {format_bytes(nbytes)}, where {format_bytes(room)} may be kept"
    return f"memory, where {format_bytes(room)} of {format_bytes(nbytes)} may be kept, and the drive"


def _dataset(dataset: object) -> str:
    """A dataset in one line, since torch's datasets have no description."""
    if isinstance(dataset, ShardDataset):
        return brief(dataset)
    if type(dataset) is Subset:
        return f"{counted(len(dataset), 'sample')} of {_dataset(dataset.dataset)}"
    if type(dataset) is ConcatDataset:
        return f"ConcatDataset([{', '.join(map(_dataset, dataset.datasets))}])"
    return repr(dataset)
