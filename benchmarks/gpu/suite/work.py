"""Training steps that take about as long as a batch takes to load, queued at once on the default stream."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from benchmarks.gpu.suite.trial import synchronise

__all__ = ["KINDS", "Work", "seconds"]

_INPUTS = 4096
_CLASSES = 1024
_WIDTHS = {True: (64, 128, 256, 384, 512, 640, 768, 1024, 1280, 1536), False: (8,)}
_SIDES = {True: (8192, 4096, 2048, 1024), False: (64,)}
_FINER = 32
_LEAST_KERNELS = 6
_TIMINGS, _STEPS = 3, 16


def seconds(device: torch.device, work: Callable[[], object]) -> float:
    """The seconds that some work takes, with all that it queues on the device."""
    synchronise(device)
    began = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - began


def _a_step(device: torch.device, step: Callable[[], object]) -> float:
    """The seconds that one step takes among many that are queued at once."""

    def steps() -> None:
        for _ in range(_STEPS):
            step()

    return min(seconds(device, steps) for _ in range(_TIMINGS)) / _STEPS


def _captured(step: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """A step as a CUDA graph, made as torch asks for it: after some steps on another stream."""
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    return graph.replay


class Work(ABC):
    """A step.

    Attributes:
        size: of its matrices.
        repeats: how often it is done for one batch.
    """

    size: int
    repeats: int

    @abstractmethod
    def __call__(self, batch: torch.Tensor) -> None:
        """One step."""


class Network(Work):
    """Forward, backward and AdamW of a network of four layers in bfloat16, on the batch's bytes, as one CUDA graph.

    Args:
        batch: one like those to come.
        wanted_s: how long it should take: the width of the layers is chosen for it.
    """

    repeats = 1

    def __init__(self, batch: torch.Tensor, wanted_s: float) -> None:
        found: dict[int, tuple[float, _Net]] = {}

        def takes(width: int) -> float:
            net = _Net(batch, width)
            found[width] = _a_step(batch.device, partial(net.step, batch)), net
            return found[width][0]

        widths = _WIDTHS[batch.device.type == "cuda"]
        low, high = 0, next((width for width in widths if takes(width) > wanted_s), widths[-1])
        low = max((width for width in found if width < high), default=high)
        while high - low > _FINER:
            middle = (low + high) // 2 // _FINER * _FINER
            low, high = (low, middle) if takes(middle) > wanted_s else (middle, high)
        _, self._net = min(found.values(), key=lambda each: abs(each[0] - wanted_s))
        self.size = self._net.width

    def __call__(self, batch: torch.Tensor) -> None:
        """See `Work`."""
        self._net.step(batch)


class _Net:
    """A network of one width, and what it is trained with."""

    def __init__(self, batch: torch.Tensor, width: int) -> None:
        device, self.width = batch.device, width
        self._rows = max(batch.numel() // _INPUTS, 1)
        self._inputs = torch.zeros(self._rows * _INPUTS, dtype=torch.uint8, device=device)
        self._labels = torch.zeros(self._rows, dtype=torch.long, device=device)
        layers: list[nn.Module] = [nn.Linear(_INPUTS, width)]
        for outputs in (width, width, _CLASSES):
            layers += [nn.GELU(), nn.LayerNorm(width), nn.Linear(width, outputs)]
        self._layers = nn.Sequential(*layers).to(device, torch.bfloat16)
        on_gpu = device.type == "cuda"
        self._optimizer = torch.optim.AdamW(self._layers.parameters(), fused=on_gpu, capturable=on_gpu)
        self._run: Callable[[], object] = _captured(self._step, device) if on_gpu else self._step

    def step(self, batch: torch.Tensor) -> None:
        """Train with a batch."""
        chosen = batch.reshape(-1)[: self._inputs.numel()]
        self._inputs[: chosen.numel()].copy_(chosen)
        self._run()

    def _step(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        inputs = (self._inputs.view(self._rows, _INPUTS).to(torch.bfloat16) - 127.5) / 73.9
        nn.functional.cross_entropy(self._layers(inputs), self._labels).backward()
        self._optimizer.step()


class Products(Work):
    """Products of bfloat16 matrices, which want all multiprocessors: the largest of which six take no longer.

    With small ones it would be measured how fast kernels are launched.
    """

    def __init__(self, batch: torch.Tensor, wanted_s: float) -> None:
        device = batch.device
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._run: Callable[[], object] = self._all
        for size in _SIDES[device.type == "cuda"]:
            self.size, self.repeats = size, 8
            self._matrix = torch.randn(size, size, device=device).to(dtype)
            self(batch)
            for _ in range(2):  # the GPU may have slept
                self.repeats = max(round(self.repeats * wanted_s / _a_step(device, self._all)), 1)
            if self.repeats >= _LEAST_KERNELS:
                break

    def __call__(self, batch: torch.Tensor) -> None:
        """See `Work`."""
        self._run()

    def _all(self) -> None:
        for _ in range(self.repeats):
            self._kernel()

    def _kernel(self) -> None:
        self._matrix @ self._matrix  # the result is not looked at


class Graph(Products):
    """The same products, as one CUDA graph for each batch."""

    def __init__(self, batch: torch.Tensor, wanted_s: float) -> None:
        super().__init__(batch, wanted_s)
        if batch.device.type == "cuda":
            self._run = _captured(self._all, batch.device)
            # Beside one another they take less time than launched one by one.
            self.repeats = max(round(self.repeats * wanted_s / _a_step(batch.device, self._run)), 1)
            self._run = _captured(self._all, batch.device)


class Sums(Products):
    """Sums of a number and such a matrix, which memory bounds."""

    def _kernel(self) -> None:
        self._matrix.add_(1)


KINDS: dict[str, Callable[[torch.Tensor, float], Work]] = {
    "network": Network,
    "products": Products,
    "graph": Graph,
    "sums": Sums,
}
