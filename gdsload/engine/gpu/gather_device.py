"""The gather on a CUDA device: rows from absolute addresses into a batch, on the current stream.

The addresses may be of device memory or of host memory that is registered with CUDA: there is one address space.
Adjacent rows are copied by the copy engine, which takes no multiprocessor, and so are long rows that come over the
link, if the driver can queue many copies at once. Others are gathered by a kernel: over PCIe four multiprocessors
saturate the link with rows of 2 KiB and more, and leave the others to training. Without cupy, torch's `index_select`
does it, over overlapping rows: as fast, but on any number of multiprocessors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.engine.gpu.kernels import IN_VRAM, OVER_PCIE, Grid, can_launch, kernel, launch
from gdsload.shards.gather_host import cut_runs, run_starts, unit_of
from gdsload.system.arrays import IntArray
from gdsload.system.copies import LONG_BYTES, copies_scattered_runs, copy_runs, copy_to
from gdsload.system.memory import UNIT_DTYPES
from gdsload.system.streams import DeviceBytes

__all__ = ["DeviceGather"]


_SOURCE = r"""
struct Params {
    const unsigned long long* rows;
    WORD* out;
    unsigned long long words, width;
};

extern "C" __global__ void LAYOUT gather(const Params p) {
    const unsigned long long* const __restrict__ rows = p.rows;
    WORD* const __restrict__ out = p.out;
    const unsigned long long words = p.words;
    const unsigned width = p.width;
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
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
"""
_PIECES = r"""
typedef unsigned long long u64;

struct Params {
    const u64* __restrict__ pieces;   // where each begins
    const u64* __restrict__ targets;  // where it goes
    const u64* __restrict__ ends;     // words of all the pieces up to it
    u64 words, last;                  // of all pieces; the number of the last one
    u64 tile;                         // words that a warp copies at once
};

extern "C" __global__ void LAYOUT gather(const Params p) {
    const unsigned lane = threadIdx.x % 32, warps = blockDim.x / 32;
    u64 begin = ((u64)blockIdx.x * warps + threadIdx.x / 32) * p.tile;
    for (; begin < p.words; begin += (u64)gridDim.x * warps * p.tile) {
        const u64 end = min(begin + p.tile, p.words);
        u64 piece = 0, above = p.last;
        while (piece < above) {
            const u64 middle = (piece + above) / 2;
            if (p.ends[middle] <= begin) piece = middle + 1; else above = middle;
        }
        // From the tile's first piece on, each lane steps from piece to piece.
        u64 first = piece ? p.ends[piece - 1] : 0, stop = p.ends[piece];
        const WORD* from = (const WORD*)p.pieces[piece];
        WORD* to = (WORD*)p.targets[piece];
        for (u64 i = begin + lane; i - lane < end; i += 32 * DEPTH) {
            WORD found[DEPTH];
            WORD* place[DEPTH];
            #pragma unroll
            for (int k = 0; k < DEPTH; ++k) if (i + 32 * k < end) {
                while (i + 32 * k >= stop) {
                    first = stop;
                    stop = p.ends[++piece];
                    from = (const WORD*)p.pieces[piece];
                    to = (WORD*)p.targets[piece];
                }
                found[k] = from[i + 32 * k - first];
                place[k] = to + (i + 32 * k - first);
            }
            #pragma unroll
            for (int k = 0; k < DEPTH; ++k) if (i + 32 * k < end) *place[k] = found[k];
        }
    }
}
"""
_TILE = range(128, 1024)
"""Words of pieces that a warp copies at once, after a search for the piece of the first word."""
_NARROW = {unit: replace(OVER_PCIE, blocks=max(32 // unit, 8), depth=8) for unit in (8, 4, 2, 1)}
"""For pieces in words of less than 16 bytes: a multiprocessor then asks for fewer bytes at once, so there are more."""


class DeviceGather:
    """Gathers into tensors of one CUDA device.

    Args:
        device: the device.
        on_host: which of some addresses are of host memory.
        grid: of the kernel over PCIe; None for the one that saturates it.
        kernel: whether to use kernels of our own; None: if they can be compiled and launched.
    """

    def __init__(
        self,
        device: torch.device,
        on_host: Callable[[IntArray], NDArray[np.bool_]],
        *,
        grid: Grid | None = None,
        kernel: bool | None = None,
    ) -> None:
        self.device, self.on_host, self._grid = device, on_host, grid
        self.kernel = can_launch() if kernel is None else kernel

    def rows(self, addresses: IntArray, row_bytes: int, out: torch.Tensor) -> None:
        """Copy rows of one size.

        Args:
            addresses: address of each row, shape ``[rows]``.
            row_bytes: bytes a row.
            out: contiguous tensor of ``rows * row_bytes`` bytes on the device.
        """
        self.batches(addresses, row_bytes, [out], [len(addresses)])

    def batches(
        self,
        addresses: IntArray,
        row_bytes: int,
        outs: Sequence[torch.Tensor],
        sizes: Sequence[int],
        begins: IntArray | None = None,
    ) -> None:
        """Copy rows of one size into several tensors, in order: work that they share is done once.

        Args:
            addresses: address of each row, shape ``[rows]``.
            row_bytes: bytes a row.
            outs: contiguous tensors on the device.
            sizes: rows of each tensor.
            begins: address of each allocation that holds rows, in rising order; None where no two can be adjacent.
        """
        count = len(addresses)
        if not count or not row_bytes:
            return
        edges = [edge for edge in pairwise(accumulate(sizes, initial=0)) if edge[0] < edge[1]]
        outs = [out for out, size in zip(outs, sizes, strict=True) if size]
        first = run_starts(addresses, row_bytes)
        # Long scattered rows, too, if they come over the link and many copies can be queued at once.
        if count * row_bytes >= len(first) * LONG_BYTES and (
            2 * len(first) <= count or count == 1 or (copies_scattered_runs() and self.over_pcie(addresses))
        ):
            if begins is not None:
                first = cut_runs(first, addresses, row_bytes, begins)
            self._neighbours(addresses, first, row_bytes, outs, edges)
            return
        bits = int(np.bitwise_or.reduce(addresses)) | row_bytes
        for out in outs:
            bits |= out.data_ptr()
        if self.kernel:
            self._launch(addresses, row_bytes, min(bits & -bits, 16), outs, edges)
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
        first = np.unique(np.concatenate([first, [low for low, _ in edges]]))
        nbytes = np.diff(np.append(first, len(addresses))) * row_bytes
        begins = np.searchsorted(first, [low for low, _ in edges]).tolist()
        for out, low, high in zip(outs, begins, [*begins[1:], len(first)], strict=True):
            self.runs(addresses[first[low:high]], nbytes[low:high], out)

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
        """Copy pieces of different lengths, concatenated, into several tensors: work that they share is done once.

        Args:
            addresses: address of each piece, shape ``[pieces]``.
            lengths: rows of each piece, shape ``[pieces]``.
            row_bytes: bytes a row.
            outs: contiguous tensors on the device, of the bytes of their pieces.
            sizes: pieces of each tensor.
            begins: address of each allocation that holds pieces; None where no two can be adjacent.
            over_pcie: whether most of them come over the link; None: found out.
        """
        nbytes = lengths * row_bytes
        if not nbytes.any():
            return
        ends = np.cumsum(nbytes)
        first = np.concatenate([[0], ends])[np.cumsum([0, *sizes])[:-1]]
        targets = ends - nbytes + np.repeat(np.array([out.data_ptr() for out in outs]) - first, sizes)
        if not self.kernel and int(ends[-1]) < len(nbytes) * LONG_BYTES:
            for out, (low, high) in zip(outs, pairwise(accumulate(sizes, initial=0)), strict=True):
                self._pieces_by_torch(addresses[low:high], nbytes[low:high], row_bytes, out)
            return
        sources, nbytes, targets = _joined(addresses, nbytes, targets, begins)
        if int(ends[-1]) >= len(nbytes) * LONG_BYTES:
            copy_to(sources, nbytes, targets, self.on_host, self.device)
            return
        bits = int(np.bitwise_or.reduce(sources | targets)) | row_bytes
        unit = min(bits & -bits, 16)
        over_pcie = self.over_pcie(sources) if over_pcie is None else over_pcie
        self._launch_pieces(np.stack([sources, targets, np.cumsum(nbytes // unit)]), unit, over_pcie)

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

    def runs(self, addresses: IntArray | list[int], nbytes: IntArray | list[int], out: torch.Tensor) -> None:
        """Copy long runs of bytes, concatenated, each by the copy engine."""
        copy_runs(addresses, nbytes, self.on_host, out)

    def _launch(
        self,
        addresses: IntArray,
        row_bytes: int,
        unit: int,
        outs: Sequence[torch.Tensor],
        edges: Sequence[tuple[int, int]],
    ) -> None:
        pointers, width = self.upload(addresses), row_bytes // unit
        params = [
            (pointers.data_ptr() + 8 * low, out.data_ptr(), (high - low) * width, width)
            for out, (low, high) in zip(outs, edges, strict=True)
        ]
        over_pcie = self.over_pcie(addresses)
        grid = (self._grid or OVER_PCIE) if over_pcie else IN_VRAM
        self._queue(_SOURCE, unit, grid, params, over_pcie=over_pcie)

    def _launch_pieces(self, table: IntArray, unit: int, over_pcie: bool) -> None:
        """Queue the kernel for a table of pieces: the address of each, its target, and its end in words of all."""
        held = self.upload(table)  # until it is queued: other threads allocate on this stream, too
        pieces, targets, ends = (column.data_ptr() for column in held)
        grid = _NARROW.get(unit, OVER_PCIE) if over_pcie else IN_VRAM
        words = int(table[2, -1])
        tile = min(max(words // (4 * grid.warps), _TILE.start), _TILE.stop)
        params = (pieces, targets, ends, words, table.shape[1] - 1, tile)
        self._queue(_PIECES, unit, grid, [params], over_pcie=over_pcie)

    def _queue(self, source: str, unit: int, grid: Grid, params: Sequence[tuple[int, ...]], *, over_pcie: bool) -> None:
        """Queue a kernel with each of some parameters."""
        made = kernel(source, "gather", unit, grid, self.device)
        for words in params:
            launch(made, self.device, grid, np.array(words, np.uint64), over_pcie=over_pcie)

    def over_pcie(self, addresses: IntArray) -> bool:
        """Whether some of these addresses, of which a few are looked at, are of host memory."""
        return bool(self.on_host(addresses[:: max(len(addresses) // 4, 1)]).any())

    def _memory(self, low: int, high: int, unit: int) -> torch.Tensor:
        return torch.as_tensor(DeviceBytes(low, high - low, unit), device=self.device)


def _as_unit(out: torch.Tensor, unit: int) -> torch.Tensor:
    return out.view(-1).view(torch.uint8).view(UNIT_DTYPES[unit])


def _joined(
    sources: IntArray, nbytes: IntArray, targets: IntArray, begins: IntArray | None
) -> tuple[IntArray, IntArray, IntArray]:
    """Pieces that are not empty, those in a row that are adjacent on both sides as one; none crosses a `begins`."""
    filled = nbytes > 0
    if not filled.all():
        sources, nbytes, targets = sources[filled], nbytes[filled], targets[filled]
    apart = np.ones(len(sources), bool)
    apart[1:] = (sources[1:] != sources[:-1] + nbytes[:-1]) | (targets[1:] != targets[:-1] + nbytes[:-1])
    if begins is not None:
        apart |= np.isin(sources, begins)
    if apart.all():
        return sources, nbytes, targets
    first = np.flatnonzero(apart)
    return sources[first], np.add.reduceat(nbytes, first), targets[first]
