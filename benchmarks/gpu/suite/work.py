"""What a training step does, for about as long as a batch takes to load: queued at once on the default stream."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from gdsload.bench.routes import synchronise

__all__ = ["KINDS", "Work", "seconds"]

_INPUTS = 4096
_CLASSES = 1024
_WIDTHS = {True: (64, 128, 256, 384, 512, 640, 768, 1024, 1280, 1536), False: (8,)}
_SIDES = {True: (8192, 4096, 2048, 1024), False: (64,)}
_LEAST_KERNELS = 6
_TIMINGS = 5


def seconds(device: torch.device, work: Callable[[], object]) -> float:
    """How long something takes, with all that it queues on the device."""
    synchronise(device)
    began = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - began


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
        found: list[tuple[float, _Net]] = []
        for width in _WIDTHS[batch.device.type == "cuda"]:
            net = _Net(batch, width)
            takes = min(seconds(batch.device, partial(net.step, batch)) for _ in range(_TIMINGS))
            found.append((abs(takes - wanted_s), net))
            if takes > wanted_s:
                break
        _, self._net = min(found, key=lambda each: each[0])
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
        self._run: Callable[[], object] = self._captured() if on_gpu else self._step

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

    def _captured(self) -> Callable[[], object]:
        """The step as a graph, made as torch asks for it: after some steps on another stream."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        self._optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self._step()
        return graph.replay


class Products(Work):
    """Products of bfloat16 matrices, which want all multiprocessors: the largest of which six take no longer.

    With small ones it would be measured how fast kernels are launched.
    """

    def __init__(self, batch: torch.Tensor, wanted_s: float) -> None:
        device = batch.device
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        for size in _SIDES[device.type == "cuda"]:
            self.size, self.repeats = size, 8
            self._matrix = torch.randn(size, size, device=device).to(dtype)
            self(batch)
            takes = min(seconds(device, partial(self, batch)) for _ in range(_TIMINGS))
            self.repeats = max(round(self.repeats * wanted_s / takes), 1)
            if self.repeats >= _LEAST_KERNELS:
                break

    def __call__(self, batch: torch.Tensor) -> None:
        """See `Work`."""
        for _ in range(self.repeats):
            self._kernel()

    def _kernel(self) -> None:
        self._matrix @ self._matrix  # the result is not looked at


class Sums(Products):
    """Sums of a number and such a matrix, which memory bounds."""

    def _kernel(self) -> None:
        self._matrix.add_(1)


KINDS: dict[str, Callable[[torch.Tensor, float], Work]] = {"network": Network, "products": Products, "sums": Sums}
