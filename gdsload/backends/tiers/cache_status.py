"""What the tiers of a loader's backend hold, and what they have served."""

from __future__ import annotations

from dataclasses import dataclass, field

from gdsload.backends.base import TierStatus

__all__ = ["CacheStatus", "TierStatus"]


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
