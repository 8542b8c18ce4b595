"""The limit of a training loop, derived from the loader's counters.

`Diagnosis` is a pure function of its evidence. If the GPU (without one, the loop) waits for less than a few percent of
the time, loading is not the limit. Otherwise the limit is the part of the loader in which its threads spend most of
their time. If the threads are idle, or batches are ready when the loop asks for them, the limit is the host, which
plans and hands over batches too slowly.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from gdsload.engine.stats import LoaderStats, short
from gdsload.errors import ReadError
from gdsload.loader.resources import SHARE_OF_VRAM
from gdsload.system.drive_rate import measure_drive
from gdsload.system.probe.tree import Tree
from gdsload.system.ram import memory_room
from gdsload.system.units import counted

if TYPE_CHECKING:
    from gdsload.loader.plan import LoaderPlan

Limit = Literal["drive", "link", "gather", "decode", "transform", "host", "model", "unknown"]
ENOUGH_BATCHES = 20
_LITTLE = 0.03
"""A share of lost time that is not worth a change: two runs of one loop differ by about as much."""
_IDLE = 0.25
"""Threads that are busy for a smaller share of the time, in sum, are not the limit."""
_FEW = 0.1
"""If a smaller share of the bytes comes from a drive, the data are in the page cache."""
_SMALL_ROWS = 2**16
_SAID_S = 0.005
_PROBE_S, _LONG_READ_BYTES = 1.0, 2**20
_LINK_PATHS = ("mapped", "pagecache")
_CLAUSES: dict[Limit, str] = {
    "drive": "The drive limits this run",
    "link": "The link to the GPU limits this run",
    "gather": "Gathering limits this run",
    "decode": "Decoding images limits this run",
    "transform": "The transforms ahead of the loop limit this run",
    "host": "The host limits this run: planning and handing over its batches takes longer than making them",
    "model": "The training step limits this run, not loading",
    "unknown": "The limit of this run is not known yet",
}
_DO: dict[Limit, str] = {
    "transform": "use more workers, `PerSample(..., workers=, processes=True)`, or a `device_transform`.",
    "host": "use a larger batch_size, since each batch runs some Python code, as does a `transform`.",
    "unknown": f"call this again after {ENOUGH_BATCHES} steps or more.",
}


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis:
    """The limit of a training loop, the evidence for it, and one thing to change. ``str`` gives all three.

    Attributes:
        stats: the loader's counters.
        threads: number of the loader's threads that make batches; 0 if the loop's thread makes them.
        on_gpu: whether batches are made on a GPU.
        sample_bytes: mean size of a sample in bytes.
        dataset_bytes: size of all samples in bytes.
        memory_room: bytes of host memory that are free or in the page cache; None if unknown.
        vram_room: default size in bytes of a cache in the GPU's memory; None without a GPU.
        shuffle: the shuffle, as in `loader.order_options`.
        cache: the option `cache` of the loader.
        drive_rate: bytes per second that the drive delivered in a probe; None if it was not measured.
    """

    stats: LoaderStats
    threads: int = 1
    on_gpu: bool = False
    sample_bytes: float = 0.0
    dataset_bytes: int = 0
    memory_room: int | None = None
    vram_room: int | None = None
    shuffle: str = "sequential"
    cache: str = "pagecache"
    drive_rate: float | None = None

    @property
    def times(self) -> dict[str, float]:
        """Thread seconds per second, by part of the loader."""
        seconds = max(self.stats.busy_s, 1e-9)
        return {name: getattr(self.stats, f"{name}_s") / seconds for name in ("read", "gather", "decode", "transform")}

    @property
    def lost_share(self) -> float:
        """The share of time lost to loading, 0 to 1: of the GPU's time, or without a GPU of the loop's time."""
        starved = self.stats.starved_share
        return self.stats.host_wait_share if starved is None else starved

    @property
    def rate(self) -> float:
        """Throughput in bytes per second, over all paths."""
        return sum(self.stats.bytes_by_path.values()) / max(self.stats.busy_s, 1e-9)

    @property
    def from_drive_share(self) -> float | None:
        """The share of the bytes that the kernel read from drives, 0 to 1; None if the kernel does not count them."""
        nbytes, drive_bytes = sum(self.stats.bytes_by_path.values()), self.stats.drive_bytes
        return None if drive_bytes is None or not nbytes else min(drive_bytes / nbytes, 1.0)

    @property
    def limit(self) -> Limit:
        """The part of the loop that limits its speed."""
        stats = self.stats
        if stats.batches < ENOUGH_BATCHES:
            return "unknown"
        seconds = stats.busy_s if stats.starved_s is None else stats.stream_s
        if self.lost_share - stats.begin_s / max(seconds, 1e-9) < _LITTLE:
            return "model"
        if stats.late_s < stats.host_wait_s / 2 or sum(self.times.values()) < _IDLE:
            return "host"
        most = max(self.times, key=self.times.__getitem__)
        path = max(stats.bytes_by_path, key=stats.bytes_by_path.__getitem__, default="")
        if most == "read":
            cached = self.from_drive_share is not None and self.from_drive_share < _FEW
            if not cached or path.startswith("gds"):
                return "drive"
            return "link" if self.on_gpu else "gather"  # processors copy what is in the page cache
        if most == "gather":
            return "link" if self.on_gpu and path in _LINK_PATHS else "gather"
        return "decode" if most == "decode" else "transform"

    @property
    def do(self) -> str:
        """The advice: one thing to change."""
        if self.limit in _DO:
            return _DO[self.limit]
        found: str = getattr(self, f"_do_about_{self.limit}")()
        return found

    @property
    def evidence(self) -> dict[str, Any]:
        """The limit and all numbers that it is derived from, as a flat dict."""
        found = {
            name: float(f"{value:.4g}") if isinstance(value, float) else value
            for name, value in self.stats.as_dict().items()
        }
        found |= {f"{name}_threads": round(busy, 3) for name, busy in self.times.items()}
        names = ("threads", "on_gpu", "sample_bytes", "dataset_bytes", "memory_room", "vram_room", "shuffle", "cache")
        given = {name: getattr(self, name) for name in (*names, "rate", "drive_rate", "from_drive_share")}
        return {"limit": self.limit, **{name: value for name, value in given.items() if value is not None}, **found}

    def __str__(self) -> str:
        stats, limit = self.stats, self.limit
        clause = _CLAUSES[limit]
        if limit == "drive":
            share = "" if self.drive_rate is None else f", {self.rate / self.drive_rate:.0%} of its speed in a probe"
            clause += f": it delivers {short(self.rate, 'B/s')}{share}"
        elif limit in ("link", "gather", "decode", "transform"):
            clause += f": {short(self.rate, 'B/s')} go through it"
        if stats.starved_s is None:
            who, lost_s, all_s = "the loop waited", stats.host_wait_s, stats.busy_s
        else:
            who, lost_s, all_s = "the GPU was idle", stats.starved_s, stats.stream_s
        lost_ms, all_ms = (1000 * seconds / max(stats.batches, 1) for seconds in (lost_s, all_s))
        words = {"read": "waiting for reads", "gather": "gathering", "decode": "decoding", "transform": "in transforms"}
        spent = [f"{self.times[name]:.2f} s {what}" for name, what in words.items() if self.times[name] >= _SAID_S]
        return (
            f"{clause}; {who} for {self.lost_share:.1%} of the last {counted(stats.batches, 'step')} ({lost_ms:.3g} ms "
            f"of {all_ms:.3g} ms). Per second the loader's threads spent {', '.join(spent) or '0 s working'}; "
            f"{stats.ready_share:.0%} of the batches were ready in time.\nDo: {self.do}"
        )

    __repr__ = __str__

    def _do_about_drive(self) -> str:
        if self.drive_rate is not None and self.rate < 0.6 * self.drive_rate and self.shuffle != "block":
            return 'shuffle="block": the drive is faster with longer reads, and more threads do not make reads longer.'
        if self.stats.epoch == 0 and self.memory_room is not None and self.dataset_bytes < self.memory_room:
            return "nothing, if more epochs follow: this was the first one, and later ones read from memory."
        if self.drive_rate is None and self.shuffle == "full" and self.sample_bytes < _SMALL_ROWS:
            return 'shuffle="block": it reads neighbouring samples together, in long reads.'
        if found := self._fits():
            return found
        return "spread the shards over more drives (`spread_over` of `gdsload.convert`), or keep images encoded."

    def _do_about_link(self) -> str:
        smaller = "store smaller types such as uint8 and widen them with a `device_transform`, or keep images encoded."
        return self._fits() or smaller

    def _do_about_gather(self) -> str:
        if self.shuffle == "full" and self.sample_bytes < _SMALL_ROWS:
            return 'shuffle="block": neighbouring samples are gathered faster.'
        return "read only the `fields` that you use, or give the process more CPU cores."

    def _do_about_decode(self) -> str:
        if self.cache not in ("ram", "vram", "auto"):
            kept = "vram" if self.on_gpu else "ram"
            return f'cache="{kept}", if `decode` gives the same pixels in every epoch: each image is then decoded once.'
        return "convert with a smaller `size`, or give the process more CPU cores."

    def _do_about_model(self) -> str:
        if self.lost_share >= _LITTLE:
            return "use longer epochs: each epoch begins with a wait, and no other time is lost."
        return "nothing: a faster loader would not save time. `gdsload.cached(loader)` shows that."

    def _fits(self) -> str:
        """The advice to cache in VRAM, if it is not used and has room for a tenth of the dataset or more."""
        room = self.vram_room or 0
        if self.cache in ("vram", "auto") or not self.on_gpu or room <= self.dataset_bytes / 10:
            return ""
        kept = min(room, self.dataset_bytes)
        left = 1 - kept / self.dataset_bytes  # of the loading time, which is all of the time now
        lost = max(1 - (1 - self.lost_share) / left, 0.0) if left else 0.0
        fit = f"{short(kept, 'B')} of {short(self.dataset_bytes, 'B')} fit and are then read only once"
        return f'cache="vram": {fit}; loading would still cost about {lost:.0%} of the time.'


def diagnosed(plan: LoaderPlan, stats: LoaderStats, threads: int, *, probe: bool) -> Diagnosis:
    """The diagnosis of a loader with this plan. `probe` allows to measure the drive for a second if it is the limit."""
    on_cuda = plan.device.type == "cuda"
    found = Diagnosis(
        stats,
        threads,
        on_gpu=plan.placement == "gpu",
        sample_bytes=plan.sample_bytes,
        dataset_bytes=int(plan.sample_bytes * len(plan.selected)),
        memory_room=memory_room(Tree()),
        vram_room=int(torch.cuda.mem_get_info(plan.device)[0] * SHARE_OF_VRAM["vram"]) if on_cuda else None,
        shuffle=plan.order.shuffle,
        cache=plan.options.cache,
    )
    if not probe or found.limit != "drive":
        return found
    read_bytes = int(plan.sample_bytes) if plan.order.shuffle == "full" else _LONG_READ_BYTES
    files = [source.path for dataset in plan.selected.datasets for source in dataset.sources]
    with suppress(ReadError):  # a file system without O_DIRECT, or files that are elsewhere
        return replace(found, drive_rate=measure_drive(files, read_bytes, _PROBE_S).gb_per_s * 1e9)
    return found
