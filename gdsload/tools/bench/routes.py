"""The contenders: the ways from a dataset to the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from gdsload.backends.names import BackendChoice
from gdsload.engine.assemble import Batch
from gdsload.loader.loader import DataLoader
from gdsload.system.streams import has_streams
from gdsload.tools.bench.bench_plan import BenchPlan


@dataclass(frozen=True, slots=True)
class Route:
    """A contender.

    Attributes:
        name: what it is called.
        way: the intended way; counters tell the path that bytes took.
        backend: how its batches reach the device; None: they are built in RAM, and the consumer copies them.
        settings: further options of its loader.
    """

    name: str
    way: str
    backend: BackendChoice | None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def open(self, plan: BenchPlan, *, shuffle: bool | str, with_index: bool = False) -> DataLoader:
        """A new loader; no shard is mapped before its first batch, nor after `close`.

        Raises:
            BackendUnavailableError: if the backend cannot be used.
        """
        # Pairs (values, offsets), and not nested tensors, which cannot be pinned everywhere.
        device = "cpu" if self.backend is None else plan.device
        options = {"backend": self.backend or "host", **self.settings}
        return DataLoader(
            plan.path, plan.batch_size, shuffle, device=device, ragged="offsets", with_index=with_index, **options
        )

    def copies(self, plan: BenchPlan) -> bool:
        """Return whether the consumer copies batches to the device."""
        return self.backend is None and plan.on_device

    def arrive(self, batch: Batch, plan: BenchPlan) -> Batch:
        """The batch on the device; texts stay in RAM."""
        if not self.copies(plan):
            return batch
        return {name: _copied(value, plan.device) for name, value in batch.items()}


def make_routes(plan: BenchPlan) -> list[Route]:
    """The contenders of a plan."""
    straight, around = ("SSD→VRAM", "SSD→RAM→VRAM") if plan.on_device else ("SSD→RAM", "SSD→RAM")
    routes = [Route(f"direct, {name}", around if name == "host" else straight, name) for name in plan.backends]
    return [*routes, Route("by RAM", around, None)]


def sample_bytes(batch: Batch) -> int:
    """Bytes of the samples of a batch, without the offsets of ragged ones."""
    return sum(_nbytes(value) for value in batch.values())


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _copied(value: Any, device: torch.device) -> Any:
    if isinstance(value, list):
        return value
    if isinstance(value, tuple):
        return tuple(_copied(part, device) for part in value)
    # From other memory MPS would copy after it was freed.
    return value.pin_memory().to(device, non_blocking=True) if has_streams(device) else value.to(device)


def _nbytes(value: Any) -> int:
    if isinstance(value, tuple):
        return int(value[0].nbytes)
    if isinstance(value, list):
        return sum(len(text) if isinstance(text, bytes) or text.isascii() else len(text.encode()) for text in value)
    return int(value.nbytes)
