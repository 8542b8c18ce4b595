"""The gather on a CUDA device: rows from absolute addresses into a batch, on the current stream.

The addresses may be of device memory or of host memory that is registered with CUDA: there is one address space.
Adjacent rows are copied by the copy engine, which takes no multiprocessor, and so are long rows that come over the
link, if the driver can queue many copies at once. Others are gathered by a kernel: over PCIe four multiprocessors
saturate the link with rows of 2 KiB and more, and leave the others to training; the kernel for pieces takes eight.
Without cupy, torch's `index_select` does it, over overlapping rows: as fast, but on any number of multiprocessors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.kernels.gather_pieces import as_pieces, compile_pieces, queue_pieces, table_of
from gdsload.kernels.launch import IN_VRAM, OVER_PCIE, Grid, can_launch, kernel, launch, prepare, prepared, word_in
from gdsload.shards.gather_host import cut_runs, run_starts, unit_of
from gdsload.system.arrays import IntArray, unique
from gdsload.system.copies import LONG_BYTES, SHORT_BYTES, copies_scattered_runs, copy_to
from gdsload.system.memory_views import UNIT_DTYPES
from gdsload.system.streams import DeviceBytes

_SHORTEST_BYTES = 256
"""Bytes of a row from which it may be copied as a piece: of shorter ones the host takes too long to make a table."""
_MOST_TENSORS = 64
"""Tensors that a launch of the kernel for rows fills: their addresses are in its parameters."""
_SOURCE = r"""
struct Tensor {
    const unsigned long long* rows;
    WORD* out;
    unsigned long long words;
};

struct Params {
    unsigned long long width, count;
    Tensor tensors[MOST];
};

extern "C" __global__ void LAYOUT gather(const Params p) {
    const unsigned width = p.width;
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned tensor = 0; tensor < p.count; ++tensor) {
        const unsigned long long* const __restrict__ rows = p.tensors[tensor].rows;
        WORD* const __restrict__ out = p.tensors[tensor].out;
        const unsigned long long words = p.tensors[tensor].words;
        unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
        for (; i + (DEPTH - 1) * step < words; i += DEPTH * step) {
            WORD found[DEPTH];
            #pragma unroll
            for (int k = 0; k < DEPTH; ++k) {
                const unsigned long long at = i + k * step, row = at / width;
                found[k] = ((const WORD*)rows[row])[at - row * width];
            }
            #pragma unroll
            for (int k = 0; k < DEPTH; ++k) out[i + k * step] = found[k];
        }
        for (; i < words; i += step) {
            const unsigned long long row = i / width;
            out[i] = ((const WORD*)rows[row])[i - row * width];
        }
    }
}
""".replace("MOST", str(_MOST_TENSORS))


class DeviceGather:
    """Gathers into tensors of one CUDA device.

    Args:
        on_host: which of some addresses are of host memory.
        grid: of the kernel over PCIe; None for the one that saturates it.
        kernel: whether to use kernels of our own; None: if they can be compiled and launched.
        prepared: whether they may be compiled when they are first used; else torch gathers until `prepare` has ended:
            the first batches wait for a drive, and not for a compiler, too.
    """

    def __init__(
        self,
        device: torch.device,
        on_host: Callable[[IntArray], NDArray[np.bool_]],
        *,
        grid: Grid | None = None,
        kernel: bool | None = None,
        prepared: bool = True,
    ) -> None:
        self.device, self.on_host, self._grid = device, on_host, grid
        self._kernel = kernel
        self._waits_for: Hashable = None if prepared else "prepare"  # until it is called: nothing has this name

    @property
    def kernel(self) -> bool:
        """True if kernels of our own are used: not while those that `prepare` wants are being compiled."""
        return (self._waits_for is None or prepared(self._waits_for)) and self.has_kernel()

    def has_kernel(self) -> bool:
        """Return whether kernels of our own can be used; waits until cupy is imported."""
        if self._kernel is None:
            self._kernel = can_launch()
        return self._kernel

    def prepare(self, row_bytes: Iterable[int], *, pieces: bool) -> None:
        """Begin to compile kernels: for rows in the GPU's own memory, and for pieces from anywhere."""
        units = frozenset(word_in(nbytes) for nbytes in row_bytes if nbytes)
        self._waits_for = what = "rows", self.device, units, pieces
        prepare(what, partial(_compile, self.device, units, pieces))

    def rows(self, addresses: IntArray, row_bytes: int, out: torch.Tensor) -> None:
        """Copy rows of one size into a contiguous tensor."""
        self.batches(addresses, row_bytes, [out], [len(addresses)])

    def batches(
        self,
        addresses: IntArray,
        row_bytes: int,
        outs: Sequence[torch.Tensor],
        sizes: Sequence[int],
        begins: IntArray | None = None,
    ) -> None:
        """Copy rows of one size into several contiguous tensors, in order: work that they share is done once.

        `addresses` has the shape ``[rows]``; `sizes` are the rows of each tensor. `begins` has the address of each
        allocation that holds rows, in rising order; None where no two can be adjacent.
        """
        count = len(addresses)
        if not count or not row_bytes:
            return
        sizes, outs = [size for size in sizes if size], [out for out, size in zip(outs, sizes, strict=True) if size]
        edges = list(pairwise(accumulate(sizes, initial=0)))
        first = run_starts(addresses, row_bytes)
        long, scattered = count * row_bytes >= len(first) * LONG_BYTES, 2 * len(first) > count > 1
        over_pcie = (scattered or not long) and self.over_pcie(addresses)
        # Long scattered rows, too, if they come over the link and many copies can be queued at once.
        # So are rows of GiB, anywhere: the kernel counts a row's words in 32 bits.
        if row_bytes >= 2**32 or (long and (not scattered or (copies_scattered_runs() and over_pcie))):
            if begins is not None:
                first = cut_runs(first, addresses, row_bytes, begins)
            self._neighbours(addresses, first, row_bytes, outs, edges)
            return
        bits = int(np.bitwise_or.reduce(addresses)) | row_bytes
        for out in outs:
            bits |= out.data_ptr()
        unit = word_in(bits)
        if self.kernel and over_pcie and row_bytes >= _SHORTEST_BYTES and as_pieces(unit, row_bytes):
            nbytes = np.full(count, row_bytes, np.int64)
            self._launch_pieces(addresses, nbytes, _targets(nbytes, outs, sizes), over_pcie=True)
            return
        if self.kernel:
            self._launch(addresses, row_bytes, unit, outs, edges, over_pcie=over_pcie)
            return
        unit, lowest, highest = unit_of(bits), int(addresses.min()), int(addresses.max())
        width = row_bytes // unit
        shape = ((highest - lowest) // unit + 1, width)
        source = self._memory(lowest, highest + row_bytes, unit).as_strided(shape, (1, 1))
        index = self.upload((addresses - lowest) // unit)
        for out, (low, high) in zip(outs, edges, strict=True):
            torch.index_select(source, 0, index[low:high], out=_as_unit(out, unit).view(high - low, width))

    def _neighbours(
        self,
        addresses: IntArray,
        first: IntArray,
        row_bytes: int,
        outs: Sequence[torch.Tensor],
        edges: Sequence[tuple[int, int]],
    ) -> None:
        """Copy rows as runs; `first`: the row that each begins with. Each batch begins a new run."""
        first = unique(np.concatenate([first, [low for low, _ in edges]]))
        nbytes = np.diff(np.append(first, len(addresses))) * row_bytes
        lows = np.array([low for low, _ in edges], np.int64)
        batch = np.searchsorted(lows, first, side="right") - 1
        begins = np.array([out.data_ptr() for out in outs], np.int64)
        self.copies(addresses[first], nbytes, begins[batch] + (first - lows[batch]) * row_bytes)

    def pieces(
        self,
        addresses: IntArray,
        lengths: IntArray,
        row_bytes: int,
        outs: Sequence[torch.Tensor],
        sizes: Sequence[int],
        begins: IntArray | None = None,
        *,
        over_pcie: bool | None = None,
    ) -> None:
        """Copy pieces of different lengths, concatenated, into contiguous tensors: work that they share is done once.

        `addresses` and `lengths`, in rows, have the shape ``[pieces]``; `sizes` are the pieces of each tensor, and
        `begins` is as of `batches`. `over_pcie`: whether most of them come over the link; None: found out.
        """
        nbytes = lengths * row_bytes
        if not nbytes.any():
            return
        total, by_kernel = int(nbytes.sum()), self.kernel
        if not by_kernel and total < len(nbytes) * LONG_BYTES:
            for out, (low, high) in zip(outs, pairwise(accumulate(sizes, initial=0)), strict=True):
                self._pieces_by_torch(addresses[low:high], nbytes[low:high], row_bytes, out)
            return
        sources, nbytes, targets = _joined(addresses, nbytes, _targets(nbytes, outs, sizes), begins)
        if total >= len(nbytes) * LONG_BYTES:
            long = nbytes >= (SHORT_BYTES if by_kernel else 0)
            self.copies(sources[long], nbytes[long], targets[long])
            if long.all():
                return
            sources, nbytes, targets = sources[~long], nbytes[~long], targets[~long]
        over_pcie = self.over_pcie(sources) if over_pcie is None else over_pcie
        self._launch_pieces(sources, nbytes, targets, over_pcie=over_pcie)

    def _pieces_by_torch(self, addresses: IntArray, nbytes: IntArray, row_bytes: int, out: torch.Tensor) -> None:
        """Pieces for one tensor, word by word."""
        filled = np.flatnonzero(nbytes)
        if not len(filled):
            return
        addresses, nbytes = addresses[filled], nbytes[filled]
        unit = unit_of(int(np.bitwise_or.reduce(addresses)) | row_bytes | out.data_ptr())
        low, high, counts = int(addresses.min()), int((addresses + nbytes).max()), nbytes // unit
        before, total = np.cumsum(counts) - counts, int(counts.sum())
        shift, repeats = self.upload(np.stack([(addresses - low) // unit - before, counts]))
        index = torch.repeat_interleave(shift, repeats, output_size=total)
        index += torch.arange(total, device=self.device)
        torch.index_select(self._memory(low, high, unit), 0, index, out=_as_unit(out, unit))

    def upload(self, array: NDArray[Any]) -> torch.Tensor:
        """An array on the device, copied through pinned memory, so that the host does not wait."""
        # Writable, or torch warns: an array of indices that a user has drawn may be read-only.
        source = torch.from_numpy(np.require(array, requirements=["C", "W"]))
        return source.pin_memory().to(self.device, non_blocking=True)

    def copies(self, addresses: IntArray | list[int], nbytes: IntArray, targets: IntArray) -> None:
        """Copy runs of bytes by the copy engine; see `copy_to`."""
        copy_to(addresses, nbytes, targets, self.on_host, self.device)

    def _launch(
        self,
        addresses: IntArray,
        row_bytes: int,
        unit: int,
        outs: Sequence[torch.Tensor],
        edges: Sequence[tuple[int, int]],
        *,
        over_pcie: bool,
    ) -> None:
        """Queue the kernel for rows, which fills all tensors one after the other."""
        pointers, width = self.upload(addresses), row_bytes // unit
        begin = pointers.data_ptr()
        grid = (self._grid or OVER_PCIE) if over_pcie else IN_VRAM
        for first in range(0, len(outs), _MOST_TENSORS):
            some = slice(first, first + _MOST_TENSORS)
            params = np.zeros(2 + 3 * _MOST_TENSORS, np.uint64)
            words = [width, len(outs[some])]
            for out, (low, high) in zip(outs[some], edges[some], strict=True):
                words += (begin + 8 * low, out.data_ptr(), (high - low) * width)
            params[: len(words)] = words
            made = kernel(_SOURCE, "gather", unit, grid, self.device)
            launch(made, self.device, grid, params, over_pcie=over_pcie)

    def _launch_pieces(self, sources: IntArray, nbytes: IntArray, targets: IntArray, *, over_pcie: bool) -> None:
        """Queue the kernel for pieces, none of them empty."""
        table = table_of(sources, targets, nbytes)
        held = self.upload(table)  # until it is queued: other threads allocate on this stream, too
        queue_pieces(held, int(table[3, -1]), self.device, over_pcie=over_pcie, grid=self._grid)

    def over_pcie(self, addresses: IntArray) -> bool:
        """Return whether some of these addresses, of which a few are looked at, are of host memory."""
        return bool(self.on_host(addresses[:: max(len(addresses) // 4, 1)]).any())

    def _memory(self, low: int, high: int, unit: int) -> torch.Tensor:
        return torch.as_tensor(DeviceBytes(low, high - low, unit), device=self.device)


def _compile(device: torch.device, units: Iterable[int], pieces: bool) -> None:
    if not can_launch():
        return
    for unit in units:
        kernel(_SOURCE, "gather", unit, IN_VRAM, device)
    for over_pcie in (False, True)[: 2 * pieces]:
        compile_pieces(device, over_pcie=over_pcie)


def _as_unit(out: torch.Tensor, unit: int) -> torch.Tensor:
    return out.view(-1).view(torch.uint8).view(UNIT_DTYPES[unit])


def _targets(nbytes: IntArray, outs: Sequence[torch.Tensor], sizes: Sequence[int]) -> IntArray:
    """The addresses that pieces go to, which fill several tensors in order, so many pieces in each."""
    ends = np.cumsum(nbytes)
    first = np.concatenate([[0], ends])[np.cumsum([0, *sizes])[:-1]]
    found: IntArray = ends - nbytes + np.repeat(np.array([out.data_ptr() for out in outs]) - first, sizes)
    return found


def _joined(
    sources: IntArray, nbytes: IntArray, targets: IntArray, begins: IntArray | None
) -> tuple[IntArray, IntArray, IntArray]:
    """Pieces that are not empty, those in a row that are adjacent on both sides as one; none crosses a `begins`."""
    filled = nbytes > 0
    if not filled.all():
        sources, nbytes, targets = sources[filled], nbytes[filled], targets[filled]
    apart = np.ones(len(sources), bool)
    apart[1:] = (sources[1:] != sources[:-1] + nbytes[:-1]) | (targets[1:] != targets[:-1] + nbytes[:-1])
    if begins is not None and len(begins) and not apart.all():
        apart |= np.isin(sources, begins)
    if apart.all():
        return sources, nbytes, targets
    first = np.flatnonzero(apart)
    return sources[first], np.add.reduceat(nbytes, first), targets[first]
