"""Measures of gdsload besides rates: beside training, beside kernel launches, over epochs, at the start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch

import gdsload
from benchmarks.contenders.base import Order
from benchmarks.contenders.gdsload_loader import SHUFFLE
from benchmarks.gpu.suite.trial import synchronise
from benchmarks.gpu.suite.work import KINDS, Work, seconds

__all__ = ["run_measure"]

_STEPS_S, _SMALL_STEPS_S = 0.3, 0.02
"""Seconds that training steps take, at least."""
_BUFFERS = 3
"""Of steps by hand: one is worked on, two are copied."""
_LAUNCHES_S = 0.2
_TURNS = 3
_LAUNCHES = 100
"""Launches between two looks at the clock."""
_SETTLED = 2
"""Epochs after which memory should no longer grow."""


def run_measure(name: str, dataset: Path, device: torch.device, arguments: dict[str, Any]) -> dict[str, Any]:
    """Do one of `benchmarks.gpu.suite.cases.MEASURES`, of gdsload's loader with its defaults."""
    return _MEASURES[name](dataset, device, arguments)


def _loader(dataset: Path, device: torch.device, batch_size: int, order: Order) -> gdsload.DataLoader:
    return gdsload.DataLoader(dataset, batch_size, SHUFFLE[order], device=device)


def step(dataset: Path, device: torch.device, arguments: dict[str, Any]) -> dict[str, Any]:
    """Work on the default stream that takes as long as a batch's load: it alone, the load alone, both at once."""
    with _loader(dataset, device, arguments["batch_size"], arguments["order"]) as loader:
        seconds(device, lambda: _steps(loader, 1, _nothing))  # registers the shards, as the first epoch does
        epoch_s = seconds(device, lambda: _steps(loader, 1, _nothing))
        batch = next(iter(loader))["x"]
        work = KINDS[arguments["work"]](batch, epoch_s / len(loader))
        wanted_s = _SMALL_STEPS_S if device.type == "cpu" else _STEPS_S  # there it is a smoke test
        epochs = ceil(wanted_s / seconds(device, lambda: _steps(loader, 1, work)))
        load_s = seconds(device, lambda: _steps(loader, epochs, _nothing))
        compute_s = seconds(device, lambda: _alone(work, batch, epochs * len(loader)))
        both_s = seconds(device, lambda: _steps(loader, epochs, work))
        steps = epochs * len(loader)
    by_hand = _ByHand(batch)
    copies_s, by_hand_s = by_hand.seconds(steps, _nothing), by_hand.seconds(steps, work)
    return {
        "steps": steps,
        "size": work.size,
        "repeats_a_step": work.repeats,
        "load_s": load_s,
        "compute_s": compute_s,
        "both_s": both_s,
        "over_longer": both_s / max(load_s, compute_s),
        "copies_s": copies_s,
        "by_hand_s": by_hand_s,
        "by_hand_over_longer": by_hand_s / max(copies_s, compute_s),
    }


def _steps(loader: gdsload.DataLoader, epochs: int, train: Callable[[torch.Tensor], object]) -> None:
    for _ in range(epochs):
        for batch in loader:
            train(batch["x"])


def _alone(work: Work, batch: torch.Tensor, steps: int) -> None:
    for _ in range(steps):
        work(batch)


class _ByHand:
    """Batches copied out of pinned memory, two ahead: as fast as the link can, with nothing to gather."""

    def __init__(self, batch: torch.Tensor) -> None:
        self._device = batch.device
        self._source = torch.empty(batch.shape, dtype=batch.dtype, pin_memory=batch.device.type == "cuda")
        self._buffers = [torch.empty_like(batch) for _ in range(_BUFFERS)]
        self._steps(1, _nothing)

    def seconds(self, steps: int, train: Callable[[torch.Tensor], object]) -> float:
        """The seconds that so many steps take."""
        return seconds(self._device, lambda: self._steps(steps, train))

    def _steps(self, steps: int, train: Callable[[torch.Tensor], object]) -> None:
        if self._device.type == "cpu":
            for step in range(steps):
                train(self._buffers[step % _BUFFERS].copy_(self._source))
            return
        stream, here = torch.cuda.Stream(self._device), torch.cuda.current_stream(self._device)
        used = [torch.cuda.Event() for _ in self._buffers]
        for step in range(steps):
            buffer, free = self._buffers[step % _BUFFERS], used[step % _BUFFERS]
            with torch.cuda.stream(stream):
                stream.wait_event(free)  # of no effect before it was recorded
                buffer.copy_(self._source, non_blocking=True)
            here.wait_stream(stream)
            train(buffer)
            free.record(here)


def _nothing(_batch: torch.Tensor) -> None:
    """A step that only takes its batch."""


def launches(dataset: Path, device: torch.device, arguments: dict[str, Any]) -> dict[str, Any]:
    """Tiny kernels a second, launched by one thread: alone, taking batches at a pace, beside one that takes them all.

    The rate of a thread varies by more than is looked for, so that alone and at a pace take turns.
    """
    pace = arguments["paced_gb_s"] * 1e9
    with _loader(dataset, device, arguments["batch_size"], "sequential") as loader:
        _steps(loader, 2, _nothing)
        turns = [(_launch_rate(device)[0], _launch_rate(device, loader, pace)) for _ in range(_TURNS)]
        with closing(_Consumer(loader, device)) as consumer:
            full, full_gb_s = _launch_rate(device)[0], consumer.bytes_per_s() / 1e9
    alone = median(rate for rate, _ in turns)
    return {
        "alone_per_s": alone,
        "paced_over_alone": median(paced / rate for rate, (paced, _) in turns),
        "paced_gb_s": median(taken / 1e9 for _, (_, taken) in turns),
        "full_over_alone": full / alone,
        "full_gb_s": full_gb_s,
    }


def _launch_rate(
    device: torch.device, loader: gdsload.DataLoader | None = None, pace: float = 0.0
) -> tuple[float, float]:
    """Launches a second by this thread, which takes a batch whenever one is due; and bytes a second that it took."""
    number, batches = torch.zeros(1, device=device), iter(loader or ())
    synchronise(device)
    count, taken, began = 0, 0, time.perf_counter()
    while (now := time.perf_counter()) - began < _LAUNCHES_S:
        if taken < (now - began) * pace:
            batch = next(batches, None)
            if batch is None:
                batches = iter(loader or ())
                continue
            taken += batch["x"].nbytes
        for _ in range(_LAUNCHES):
            number.add_(1)
        count += _LAUNCHES
    synchronise(device)
    seconds = time.perf_counter() - began
    return count / seconds, taken / seconds


class _Consumer:
    """A thread that takes batches, on its own stream, so that launches elsewhere do not wait for them.

    Args:
        loader: whose batches.
        device: the GPU.
    """

    def __init__(self, loader: gdsload.DataLoader, device: torch.device) -> None:
        self._loader, self._device = loader, device
        self._stopped, self._taken, self._failure = False, 0, ""
        self._began = time.perf_counter()
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _batches(self) -> Iterator[Any]:
        while not self._stopped:
            yield from self._loader

    def _take(self) -> None:
        stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        try:
            with torch.cuda.stream(stream) if stream else nullcontext():
                for batch in self._batches():
                    self._taken += batch["x"].nbytes
                    if self._stopped:
                        return
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"

    def bytes_per_s(self) -> float:
        """The bytes taken so far, a second.

        Raises:
            RuntimeError: if it has failed.
        """
        if self._failure:
            raise RuntimeError(self._failure)
        return self._taken / (time.perf_counter() - self._began)

    def close(self) -> None:
        """Stop."""
        self._stopped = True
        self._thread.join()


def memory(dataset: Path, device: torch.device, arguments: dict[str, Any]) -> dict[str, Any]:
    """Memory after each of some epochs, and by how much it varies once it has settled, in bytes."""
    by_epoch: dict[str, list[int]] = {}
    with _loader(dataset, device, arguments["batch_size"], "full") as loader:
        for _ in range(arguments["epochs"]):
            seconds(device, lambda: _steps(loader, 1, _nothing))
            for name, nbytes in _memory(device).items():
                by_epoch.setdefault(name, []).append(nbytes)
    settled = {name: values[_SETTLED:] for name, values in by_epoch.items()}
    return {
        **{f"{name}_range": float(max(values) - min(values)) for name, values in settled.items()},
        **{f"{name}_last": float(values[-1]) for name, values in settled.items()},
        "by_epoch": by_epoch,
    }


def _memory(device: torch.device) -> dict[str, int]:
    """Of this process: not the page cache, also where that is registered; and torch's on the GPU."""
    wanted = {"RssAnon": "anonymous", "VmLck": "locked", "VmPin": "pinned"}
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        lines = (line.partition(":") for line in file)
        found = {wanted[name]: int(value.split()[0]) * 1024 for name, _, value in lines if name in wanted}
    if device.type == "cuda":
        found["reserved_vram"] = torch.cuda.memory_reserved(device)
    return found


def first_batch(dataset: Path, device: torch.device, arguments: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds until a new loader is there, and until its first batch is on the device, in all.

    A loader before it has made the CUDA context, and what is probed of the machine once.
    """

    def start() -> tuple[float, float]:
        synchronise(device)
        began = time.perf_counter()
        with _loader(dataset, device, arguments["batch_size"], "full") as loader:
            made = time.perf_counter()
            with closing(cast("Any", iter(loader))) as batches:
                next(batches)
                synchronise(device)
                there = time.perf_counter()
        return (made - began) * 1e3, (there - began) * 1e3

    start()
    made_ms, there_ms = start()
    return {"loader_ms": made_ms, "first_batch_ms": there_ms}


_MEASURES: dict[str, Callable[[Path, torch.device, dict[str, Any]], dict[str, Any]]] = {
    "step-in-order": step,
    "step-full": step,
    "step-gather": step,
    "step-in-order-products": step,
    "step-gather-products": step,
    "step-gather-graph": step,
    "step-gather-memory": step,
    "launches": launches,
    "memory": memory,
    "first-batch": first_batch,
}
