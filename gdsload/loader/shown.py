"""The description of a loader in one line for people: what it reads, and how."""

from __future__ import annotations

from torch.utils.data import ConcatDataset, Subset

from gdsload.backends.keep import default_register_bytes
from gdsload.loader.plan import LoaderPlan
from gdsload.system.units import format_bytes


def shown(plan: LoaderPlan, batch_size: int | None) -> str:
    """A loader as text: dataset, order, device, backend and budgets."""
    order = plan.order
    return (
        f"DataLoader({_dataset(plan.dataset)}, batch_size={batch_size}, {order.shuffle} order ({order.reason}), "
        f"seed={plan.seed}, device={str(plan.device)!r}, backend={plan.asked!r}{_way(plan)}, "
        f"memory=Memory(prefetch={format_bytes(plan.prefetch_bytes)!r}, arena={format_bytes(plan.arena_bytes)!r}), "
        f"later epochs from {_later(plan)})"
    )


def _later(plan: LoaderPlan) -> str:
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


def _way(plan: LoaderPlan) -> str:
    """The backend in use, where another one was asked for, as samples are made in CPU memory; else nothing."""
    why = "collate_fn" if plan.options.collate_fn else "sample_transform"
    return "" if plan.asked == str(plan.backend.backend) else f" ({plan.backend.backend}, for {why})"


def _dataset(dataset: object) -> str:
    """Torch's datasets have no text."""
    if type(dataset) is Subset:
        return f"{len(dataset)} samples of {_dataset(dataset.dataset)}"
    if type(dataset) is ConcatDataset:
        return f"ConcatDataset([{', '.join(map(_dataset, dataset.datasets))}])"
    return repr(dataset)
