"""What the tiers of a loader's backend hold, and what they have served."""

from __future__ import annotations

from dataclasses import dataclass, field

from gdsload.backends.base import Backend
from gdsload.backends.mapped import MappedBackend
from gdsload.backends.tiers.routed import RoutedBackend
from gdsload.backends.tiers.vram import VramBackend
from gdsload.system.units import format_bytes

__all__ = ["CacheStatus", "TierStatus", "cache_status"]


@dataclass(frozen=True, slots=True)
class TierStatus:
    """One tier.

    Attributes:
        budget_bytes: what it may hold.
        held_bytes: what it holds.
        shards: how many shards it holds.
        hit_bytes: bytes of samples that came out of it.
        evictions: how many times a shard had to make room for another.
        trouble: why it takes no further shard; empty while it may.
    """

    budget_bytes: int
    held_bytes: int
    shards: int
    hit_bytes: int
    evictions: int = 0
    trouble: str = ""

    def __str__(self) -> str:
        room = f"{format_bytes(self.held_bytes)} of {format_bytes(self.budget_bytes)}"
        trouble = f" ({self.trouble})" if self.trouble else ""
        return f"{self.shards} shards, {room}, {format_bytes(self.hit_bytes)} served, {self.evictions} evicted{trouble}"


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """The tiers of a loader.

    Attributes:
        asked: the loader's `cache` option.
        shards: how many shards the loader's samples lie in.
        tiers: those in use, by name: ``"vram"``; ``"pagecache"``, files that are registered with CUDA.
    """

    asked: str
    shards: int = 0
    tiers: dict[str, TierStatus] = field(default_factory=dict)

    def __str__(self) -> str:
        tiers = "; ".join(f"{name}: {tier}" for name, tier in self.tiers.items()) or "no tier is in use"
        return f"cache={self.asked!r}, {self.shards} shards; {tiers}"


def cache_status(asked: str, shards: int, backend: Backend) -> CacheStatus:
    """What the tiers of a backend hold now."""
    tiers: dict[str, TierStatus] = {}
    if isinstance(backend, VramBackend):
        hits = backend.bytes_by_path().get("vram", 0)
        count = int(backend.kept.sum())
        tiers["vram"] = TierStatus(backend.vram_bytes, backend.kept_bytes, count, hits, trouble=backend.trouble)
        backend = backend.inner
    trouble = backend.trouble if isinstance(backend, RoutedBackend) else ""
    if isinstance(backend, RoutedBackend):
        backend = backend.mapped
    if isinstance(backend, MappedBackend):
        tiers["pagecache"] = TierStatus(
            backend.register_bytes, backend.registered_bytes, int(backend.registered.sum()),
            backend.bytes_by_path()["mapped"], backend.evictions, trouble,
        )  # fmt: skip
    return CacheStatus(asked, shards, tiers)
