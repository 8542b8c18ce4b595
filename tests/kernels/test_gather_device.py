"""Which way rows and pieces go, and where they come to: the kernel for pieces is numpy here, and copies are torch's."""

import ctypes
import threading
import time
from itertools import pairwise

import numpy as np
import pytest
import torch

from gdsload.kernels import gather_device
from gdsload.kernels.gather_device import DeviceGather
from gdsload.system.copies import SHORT_BYTES
from gdsload.system.memory_views import UNIT_DTYPES

DATA = np.random.default_rng(0).integers(0, 256, 1 << 22, np.uint8)


@pytest.fixture
def queued():
    """The bytes of pieces that the kernel got."""
    return []


@pytest.fixture
def gather(monkeypatch, queued):
    def queue_pieces(table, words, _device, *, over_pcie, grid):
        assert over_pcie
        assert words == table[3, -1]
        queued.extend(table[2].tolist())
        for source, target, nbytes in table[:3].T.tolist():
            ctypes.memmove(target, source, nbytes)

    monkeypatch.setattr(gather_device, "queue_pieces", queue_pieces)
    monkeypatch.setattr(DeviceGather, "upload", lambda _self, array: torch.from_numpy(array))
    return DeviceGather(torch.device("cpu"), lambda found: np.ones(len(found), bool), kernel=True)


def expected(offsets, nbytes, sizes):
    """The values that each of several tensors gets."""
    edges = np.cumsum([0, *sizes]).tolist()
    pieces = [DATA[low : low + count] for low, count in zip(offsets.tolist(), nbytes.tolist(), strict=True)]
    return [np.concatenate([DATA[:0], *pieces[low:high]]) for low, high in pairwise(edges)]


@pytest.mark.parametrize("row_bytes", [257, 1001, 4100])
@pytest.mark.parametrize("sizes", [[9], [3, 0, 5, 1], [0, 2]])
def test_rows_that_are_no_whole_words_are_pieces(gather, queued, row_bytes, sizes):
    offsets = np.random.default_rng(row_bytes).integers(0, len(DATA) - row_bytes, sum(sizes))
    outs = [torch.zeros(size * row_bytes, dtype=torch.uint8) for size in sizes]
    gather.batches(DATA.ctypes.data + offsets, row_bytes, outs, sizes)
    wanted = expected(offsets, np.full(len(offsets), row_bytes), sizes)
    assert all(np.array_equal(out.numpy(), one) for out, one in zip(outs, wanted, strict=True))
    assert queued == [row_bytes] * sum(sizes)


def memory(address, nbytes, unit):
    return torch.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype=UNIT_DTYPES[unit])


def test_torch_gathers_while_the_kernels_are_compiled(monkeypatch, gather, queued):
    """It has a copy for each byte as long as nothing is compiled, or not even asked for."""
    gather = DeviceGather(torch.device("cpu"), gather.on_host, prepared=False)
    compiled = threading.Event()
    monkeypatch.setattr(gather_device, "kernel", lambda *_: compiled.wait(10))
    monkeypatch.setattr(gather_device, "compile_pieces", lambda *_, over_pcie: None)
    monkeypatch.setattr(gather_device, "can_launch", lambda: True)
    monkeypatch.setattr(gather_device, "DeviceBytes", memory)
    assert gather.has_kernel()
    offsets, outs = np.random.default_rng(0).integers(0, 1000, 9), [torch.zeros(9 * 257, dtype=torch.uint8)]
    for asked, at_once in enumerate((False, False, True)):
        gather.batches(DATA.ctypes.data + offsets, 257, outs, [9])
        assert np.array_equal(outs[0].numpy(), expected(offsets, np.full(9, 257), [9])[0])
        assert bool(queued) == at_once
        gather.prepare([257], pieces=True)
        if asked:
            compiled.set()
        while asked and not gather.kernel:
            time.sleep(0.001)


@pytest.mark.parametrize("longest", [9, 5000, 400_000])
@pytest.mark.parametrize("sizes", [[40], [10, 0, 29, 1]])
def test_short_pieces_are_for_the_kernel(gather, queued, longest, sizes):
    """Also beside long ones, which are copied."""
    random = np.random.default_rng(longest)
    nbytes = random.choice([0, 1, longest // 2, longest], 40)
    offsets = random.integers(0, len(DATA) - longest, 40)
    ends = np.cumsum([0, *sizes])
    outs = [torch.zeros(int(nbytes[low:high].sum()), dtype=torch.uint8) for low, high in pairwise(ends.tolist())]
    gather.pieces(DATA.ctypes.data + offsets, nbytes, 1, outs, sizes)
    wanted = expected(offsets, nbytes, sizes)
    assert all(np.array_equal(out.numpy(), one) for out, one in zip(outs, wanted, strict=True))
    assert sorted(queued) == sorted(nbytes[(nbytes > 0) & (nbytes < SHORT_BYTES)].tolist())
