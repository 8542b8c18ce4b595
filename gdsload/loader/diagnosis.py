"""The limit of a training loop, decided from what was counted.

The decision is a pure function of the evidence: `Diagnosis` has nothing else. First the loss: if the GPU, or without
one the loop, waits for less than a few percent of its time, loading limits nothing. Else the limit is the part of the
loader on which its threads spend most of their time; where they are idle, or batches are there when they are asked for,
it is the host, which cannot plan and hand over batches as quickly.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
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
"""A loss that is not worth doing anything about, and about what two runs of one loop differ by."""
_IDLE = 0.25
"""Threads that are busy for less of the time, all together, do not limit anything."""
_FEW = 0.1
"""Share of the bytes that come from a drive below which they are in the page cache."""
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
    "unknown": "It is unknown yet what limits this run",
}
_DO: dict[Limit, str] = {
    "transform": "more workers, `PerSample(..., workers=, processes=True)`, or a `device_transform` of whole batches.",
    "host": "a larger batch_size, as each batch takes some Python; a `transform` in the loop's thread counts, too.",
    "unknown": f"ask again after {ENOUGH_BATCHES} steps or more.",
}


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis:
    """The limit of a training loop, the evidence for it, and one thing to do; as text two sentences, and the advice.

    Attributes:
        stats: what was counted.
        threads: threads of the loader that make batches, beside the loop's; 0: that does.
        on_gpu: whether batches are made on a GPU.
        sample_bytes: mean bytes of a sample.
        dataset_bytes: bytes of all samples.
        memory_room: bytes of memory that are free or hold files, for all that is cached; None if unknown.
        vram_room: bytes that a cache in the GPU's memory would take by default; None without one.
        shuffle: the order's, as in `loader.order_options`.
        cache: the loader's option.
        drive_rate: bytes a second that the drive gave in a probe; None if it was not asked.
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
    times: dict[str, float] = field(init=False)
    """Seconds of threads in each second, by the part of the loader."""

    def __post_init__(self) -> None:
        stats, seconds = self.stats, max(self.stats.busy_s, 1e-9)
        spent = {
            "read": stats.read_s, "gather": stats.gather_s, "decode": stats.decode_s, "transform": stats.transform_s
        }  # fmt: skip
        object.__setattr__(self, "times", {name: part_s / seconds for name, part_s in spent.items()})

    @property
    def lost_share(self) -> float:
        """Share of the time that is lost by loading: the GPU's, or without one that of the loop."""
        starved = self.stats.starved_share
        return self.stats.host_wait_share if starved is None else starved

    @property
    def rate(self) -> float:
        """Bytes a second, on all paths."""
        return sum(self.stats.bytes_by_path.values()) / max(self.stats.busy_s, 1e-9)

    @property
    def from_drive_share(self) -> float | None:
        """Share of these bytes that the kernel has read from drives, 1 at most; None if it does not say."""
        nbytes, drive_bytes = sum(self.stats.bytes_by_path.values()), self.stats.drive_bytes
        return None if drive_bytes is None or not nbytes else min(drive_bytes / nbytes, 1.0)

    @property
    def limit(self) -> Limit:
        """The limit."""
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
        """One thing to do."""
        if self.limit in _DO:
            return _DO[self.limit]
        found: str = getattr(self, f"_do_about_{self.limit}")()
        return found

    @property
    def evidence(self) -> dict[str, Any]:
        """The limit, and all numbers that it was decided by, flat."""
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
            share = "" if self.drive_rate is None else f", {self.rate / self.drive_rate:.0%} of what it gave in a probe"
            clause += f": {short(self.rate, 'B/s')} come from it{share}"
        elif limit in ("link", "gather", "decode", "transform"):
            clause += f": {short(self.rate, 'B/s')} go through it"
        if stats.starved_s is None:
            who, lost_s, all_s = "the loop waited", stats.host_wait_s, stats.busy_s
        else:
            who, lost_s, all_s = "the GPU had nothing to do", stats.starved_s, stats.stream_s
        lost_ms, all_ms = (1000 * seconds / max(stats.batches, 1) for seconds in (lost_s, all_s))
        words = {"read": "waiting for reads", "gather": "gathering", "decode": "decoding", "transform": "in transforms"}
        spent = [f"{self.times[name]:.2f} s {what}" for name, what in words.items() if self.times[name] >= _SAID_S]
        return (
            f"{clause}; {who} for {self.lost_share:.1%} of the last {counted(stats.batches, 'step')} ({lost_ms:.3g} ms "
            f"of {all_ms:.3g} ms). Of each second the loader's threads spent {', '.join(spent) or 'nothing'}; "
            f"{stats.ready_share:.0%} of the batches were there when they were asked for.\nDo: {self.do}"
        )

    __repr__ = __str__

    def _do_about_drive(self) -> str:
        if self.drive_rate is not None and self.rate < 0.6 * self.drive_rate and self.shuffle != "block":
            return 'shuffle="block": the drive can do more in longer reads. More threads would not make them longer.'
        if self.stats.epoch == 0 and self.memory_room is not None and self.dataset_bytes < self.memory_room:
            return "nothing, if there are more epochs: this was the first, and later ones find all bytes in memory."
        if self.drive_rate is None and self.shuffle == "full" and self.sample_bytes < _SMALL_ROWS:
            return 'shuffle="block": it reads neighbouring samples together, in long reads.'
        if found := self._fits():
            return found
        return "spread the shards over more drives (`spread_over` of `gdsload.convert`), or keep images encoded."

    def _do_about_link(self) -> str:
        smaller = "store smaller types, such as uint8, and widen them by a `device_transform`; or keep images encoded."
        return self._fits() or smaller

    def _do_about_gather(self) -> str:
        if self.shuffle == "full" and self.sample_bytes < _SMALL_ROWS:
            return 'shuffle="block": samples that are near each other are gathered faster.'
        return "name the `fields` that are used, or give the process more processors."

    def _do_about_decode(self) -> str:
        if self.cache not in ("ram", "vram", "auto"):
            kept = "vram" if self.on_gpu else "ram"
            return f'cache="{kept}", if `decode` makes the same of an image in every epoch: it is decoded once.'
        return "convert with a smaller `size`, or give the process more processors."

    def _do_about_model(self) -> str:
        if self.lost_share >= _LITTLE:
            return "longer epochs: each one begins with a wait, and nothing else is lost."
        return "nothing about loading: a faster loader would change nothing. `gdsload.cached(loader)` shows that."

    def _fits(self) -> str:
        """The cache in VRAM as what to do, if it is not used and has room for a tenth of the dataset or more."""
        room = self.vram_room or 0
        if self.cache in ("vram", "auto") or not self.on_gpu or room <= self.dataset_bytes / 10:
            return ""
        kept = min(room, self.dataset_bytes)
        left = 1 - kept / self.dataset_bytes  # of what takes all of the time now, while the step takes the rest
        lost = max(1 - (1 - self.lost_share) / left, 0.0) if left else 0.0
        fit = f"{short(kept, 'B')} of {short(self.dataset_bytes, 'B')} fit, and are read once"
        return f'cache="vram": {fit}; about {lost:.0%} of the time would still be lost.'


def diagnosed(plan: LoaderPlan, stats: LoaderStats, threads: int, *, probe: bool) -> Diagnosis:
    """The diagnosis of a loader of this plan. If its drive is the limit, that may be measured, for a second."""
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
