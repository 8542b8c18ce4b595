"""The gather from positions: the GPU itself works out which samples they are, and where those lie.

One kernel evaluates the order's permutation (the twin of `gdsload.order.permutation`, bit for bit), finds the shard,
and copies the row. So planning a batch costs the host a few numbers, however small its rows are. It needs every shard
within the GPU's reach: in its own memory, or in registered host memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.engine.kernels import IN_VRAM, WARP, kernel, launch, over_pcie
from gdsload.order.permutation import Recipe
from gdsload.streams import side_stream, stream_handle

__all__ = ["MOST_BATCHES", "PERMUTATION", "PositionGather", "Rows", "Uploads"]

IntArray = NDArray[np.int64]

MOST_BATCHES = 64
"""Batches of one launch: the length of `out` in the kernel."""
_PART = 256
"""Words of a long row that are worth a tile of their own."""
_PARAMS = 14
_STRUCT = np.dtype([("params", np.uint64, (_PARAMS + MOST_BATCHES,))])
"""The kernel's `Params`: one value, so that cupy passes it as one."""
PERMUTATION = r"""
typedef unsigned long long u64;
typedef long long i64;

__device__ __forceinline__ u64 hashed(u64 value, u64 key) {
    value = value * 0x9E3779B97F4A7C15ull + key;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
    return value ^ (value >> 31);
}

// network: numbers, size of the left half, of the right half, and the key of each of 8 rounds
__device__ u64 permuted(u64 value, const u64* network) {
    const u64 n = network[0], size_left = network[1], size_right = network[2];
    do {
        u64 right = value / size_left, left = value - right * size_left;
        #pragma unroll
        for (int k = 0; k < 8; k += 2) {
            left += ((hashed(right, network[3 + k]) >> 24) * size_left) >> 40;
            if (left >= size_left) left -= size_left;
            right += ((hashed(left, network[4 + k]) >> 24) * size_right) >> 40;
            if (right >= size_right) right -= size_right;
        }
        value = right * size_left + left;
    } while (value >= n);
    return value;
}
"""
"""CUDA source of `permuted`, the twin of `gdsload.order.permutation.Feistel`, and of the hash under it."""
_GATHER = r"""
struct Params {
    const u64* network;    // all 0 where there is none
    const i64* table;
    const i64* selection;
    const i64* ends;       // of the shards, in samples
    const i64* origins;    // of the shards: where sample 0 would lie
    u64 shards, row_bytes, width;
    u64 first, stride;     // first position of the first batch, and from batch to batch
    u64 words, tile;       // of a batch and of a tile, in words
    u64 tiles, all;        // of a batch, and of all batches
    WORD* out[64];
};

__device__ __forceinline__ u64 address(const Params& p, u64 position) {
    u64 id = position;
    if (p.network) id = permuted(id, p.network);
    else if (p.table) id = p.table[id];
    if (p.selection) id = p.selection[id];
    unsigned below = 0, above = p.shards;
    while (below < above) {
        const unsigned middle = (below + above) / 2;
        if ((u64)p.ends[middle] <= id) below = middle + 1; else above = middle;
    }
    return p.origins[below] + id * p.row_bytes;
}

extern "C" __global__ void LAYOUT gather(const Params p) {
    const unsigned lane = threadIdx.x % 32, width = p.width;
    const unsigned down = 32 / width, right = 32 - down * width;
    const u64 step = (u64)gridDim.x * (blockDim.x / 32);
    for (u64 number = (u64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; number < p.all; number += step) {
        const u64 batch = number / p.tiles, begin = (number - batch * p.tiles) * p.tile, low = begin / width;
        const unsigned words = (unsigned)min(p.tile, p.words - begin), within = (unsigned)(begin - low * width);
        const u64 row = low * width + (u64)lane * width < begin + words
            ? address(p, p.first + batch * p.stride + low + lane) : 0;
        WORD* const target = p.out[batch] + begin;
        unsigned t = (within + lane) / width, column = within + lane - t * width;
        for (unsigned i = lane; i - lane < words; i += 32 * DEPTH) {
            WORD found[DEPTH];
            #pragma unroll
            for (int k = 0; k < DEPTH; ++k) {
                const WORD* const source = (const WORD*)__shfl_sync(0xffffffffu, row, t);
                if (i + 32 * k < words) found[k] = source[column];
                t += down;
                column += right;
                if (column >= width) { column -= width; ++t; }
            }
            #pragma unroll
            for (int k = 0; k < DEPTH; ++k) if (i + 32 * k < words) target[i + 32 * k] = found[k];
        }
    }
}
"""


class Uploads:
    """Arrays on a GPU that kernels on any stream may read.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream, self._used_on = side_stream(device), set[int]()
        self._tensors: list[torch.Tensor] = []

    def add(self, array: IntArray) -> torch.Tensor:
        """An array on the device. Waits until it is there, and for nothing else.

        Raises:
            torch.OutOfMemoryError: if the device has no room for it.
        """
        with torch.cuda.stream(self._stream):
            tensor = torch.from_numpy(np.array(array)).to(self.device)
        self._tensors.append(tensor)
        self._used_on.clear()
        return tensor

    def use(self) -> None:
        """Have the memory of all of them outlive what is queued on the current stream."""
        handle = stream_handle(self.device)
        if handle not in self._used_on:
            for tensor in self._tensors:
                tensor.record_stream(torch.cuda.current_stream(self.device))
            self._used_on.add(handle)


class Rows:
    """The rows of one field, as the GPU finds them.

    Args:
        gather: whose shards they lie in.
        begin: address of the field's first row in each shard, shape ``[shards]``.
        row_bytes: bytes a row; not 0.
    """

    def __init__(self, gather: PositionGather, begin: IntArray, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        bits = int(np.bitwise_or.reduce(begin)) | row_bytes
        self.unit = min(bits & -bits, 16)
        starts = np.concatenate([np.zeros(1, np.int64), gather.ends[:-1]])
        # Address = origin of the shard + id * row_bytes, whatever shard the id is in.
        self.origins = gather.upload(begin - starts * row_bytes)


class PositionGather:
    """Gathers rows by their positions in an order.

    Args:
        device: the GPU.
        ends: first sample id behind each shard, shape ``[shards]``.
        over_pcie: whether some of the shards are in host memory.
        recipe: the order's permutation; None where position and id are the same, or each gather says what they are.
        selection: sample id of each position in the table; None where they are the same.
    """

    def __init__(
        self,
        device: torch.device,
        ends: IntArray,
        *,
        over_pcie: bool,
        recipe: Recipe | None = None,
        selection: IntArray | None = None,
    ) -> None:
        self.device, self.ends, self.over_pcie = device, ends, over_pcie
        self._uploads = Uploads(device)
        network = table = None
        if recipe is not None:
            network, table = recipe.network, recipe.table
        arrays = (None if network is None else network.view(np.int64), table, selection, ends)
        self._pointers = [0 if array is None else self._uploads.add(array).data_ptr() for array in arrays]

    def upload(self, array: IntArray) -> torch.Tensor:
        """See `Uploads.add`."""
        return self._uploads.add(array)

    def rows(
        self,
        rows: Rows,
        first: int,
        stride: int,
        outs: Sequence[torch.Tensor],
        size: int,
        ids: torch.Tensor | None = None,
    ) -> None:
        """Copy the rows of some batches, on the current stream.

        Args:
            rows: the field.
            first: first position of the first batch.
            stride: from one batch's first position to the next one's.
            outs: for each batch a contiguous tensor of ``size * rows.row_bytes`` bytes on the device, at a multiple of
                16 bytes, as torch allocates them.
            size: number of rows of each batch.
            ids: what stands at each position, on the device; int64. None where the recipe says it.
        """
        self._uploads.use()
        pointers = self._pointers if ids is None else [0, ids.data_ptr(), *self._pointers[2:]]
        for low in range(0, len(outs) if size else 0, MOST_BATCHES):
            self._launch(rows, (first + low * stride, stride), outs[low : low + MOST_BATCHES], size, pointers)

    def _launch(
        self, rows: Rows, places: tuple[int, int], outs: Sequence[torch.Tensor], size: int, pointers: Sequence[int]
    ) -> None:
        width = rows.row_bytes // rows.unit
        grid = over_pcie(rows.row_bytes) if self.over_pcie else IN_VRAM
        tile = _tile(size * len(outs), width, grid.warps)
        tiles = -(-size * width // tile)
        params = np.zeros(_PARAMS + MOST_BATCHES, np.uint64)
        params[:_PARAMS] = (
            *pointers, rows.origins.data_ptr(), len(self.ends), rows.row_bytes, width, *places,
            size * width, tile, tiles, tiles * len(outs),
        )  # fmt: skip
        params[_PARAMS : _PARAMS + len(outs)] = [out.data_ptr() for out in outs]
        gather = kernel(PERMUTATION + _GATHER, "gather", rows.unit, grid, self.device)
        launch(gather, self.device, grid, (params.view(_STRUCT),))


def _tile(rows: int, width: int, warps: int) -> int:
    """Words that a warp copies at once: those of up to 32 rows, as each of its threads finds one; or a part of a row.

    So many that all warps get as many tiles, where that can be.

    Args:
        rows: how many there are.
        width: words of each.
        warps: warps that share them.
    """
    rounds = -(-rows // (WARP * warps))
    whole = -(-rows // (rounds * warps))
    if whole > 1 or width <= _PART:
        return min(max(whole, WARP // width), WARP) * width
    return min(-(-rows * width // (warps * _PART)) * _PART, width)
