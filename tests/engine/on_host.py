"""Stand-ins for what needs a GPU, whose tensors are in memory of the host."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import torch

from gdsload.engine.assemble import Assembler
from gdsload.engine.steps import Ordered
from gdsload.kernels import shared_tensors
from gdsload.kernels.block_ids import BlockIds
from gdsload.system.copies import copy_to
from gdsload.system.memory import BatchPool, memory_at

CPU = torch.device("cpu")


def tensors_on_host(monkeypatch):
    """Have tensors that kernels of any stream read stay where they are."""
    monkeypatch.setattr(shared_tensors, "side_stream", lambda _device: object())
    monkeypatch.setattr(shared_tensors, "on", nullcontext)
    monkeypatch.setattr(shared_tensors, "stream_handle", lambda _device: 0)
    monkeypatch.setattr(shared_tensors, "current_stream", lambda _device: None)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda _tensor, _stream: None)


def at(address, count):
    """So many int64 numbers in memory of the host."""
    return np.frombuffer(memory_at(address, 8 * count), np.int64)


class Past:
    """Stands in for an event that is past."""

    def query(self):
        return True

    def synchronize(self):
        pass


class HostMaker(Assembler):
    """Stands in for `DeviceAssembler`; notes what is made on the side stream."""

    device = CPU

    def __init__(self, form, on_host=None, *, kernel=True):
        super().__init__(form, BatchPool(1 << 20))
        self.takes_processor, self.aside = False, []
        self.stream, self.side = SimpleNamespace(device=CPU, synchronize=lambda: None), self.on_side
        self.gather = SimpleNamespace(
            on_host=on_host, copies=self.copies, upload=torch.from_numpy, has_kernel=lambda: kernel
        )

    def on_side(self, make):
        self.aside += (made := make())
        return made

    def copies(self, addresses, nbytes, targets):
        copy_to(addresses, nbytes, targets, lambda found: np.ones(len(found), bool), CPU)


class Ids:
    """Stands in for `BlockIds`: the host computes them, where there is room for them."""

    room, made = True, 0
    possible = BlockIds.possible

    def __init__(self, _device, order, schedule):
        if not self.room:
            raise torch.OutOfMemoryError("no room")
        Ids.made += 1
        self.steps = Ordered(order, schedule)

    def __call__(self, steps):
        return torch.from_numpy(self.steps.positions(steps).copy())
