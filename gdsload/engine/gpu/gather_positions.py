"""The gather from positions: the GPU itself computes which samples they are, and where those are located.

One kernel evaluates the order's permutation (the twin of `gdsload.order.permutation`, bit for bit), finds the shard,
and copies the row. So planning a batch costs the host a few numbers, however small its rows are. The GPU must be able
to address every shard: in its own memory, or in registered host memory.

Rows out of much host memory are fetched in the order of their addresses. The GPU caches the translations of only so
many of the host's pages, and has to look up all others; it finds neighbours of the last ones far more quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from gdsload.engine.gpu.kernels import IN_VRAM, OVER_PCIE, WARP, Grid, kernel, launch
from gdsload.engine.gpu.uploads import Uploads
from gdsload.order.permutation import Recipe
from gdsload.system.arrays import IntArray
from gdsload.system.streams import SideStream, Tensors

__all__ = [
    "MOST_BATCHES",
    "PART",
    "PERMUTATION",
    "SORTING",
    "DeviceRows",
    "PositionBatch",
    "PositionGather",
    "RowRuns",
    "Sorting",
    "tile_of",
    "word_of",
]


MOST_BATCHES = 256
"""Batches of one launch: the length of `out` in the kernel."""
PART = 256
"""Words of a long row from which a part of it is a tile of its own."""
_TILE_BYTES = 2**15
"""Bytes of such rows that a warp takes at once: few, so that all warps are close to each other in the file."""


class Sorting(NamedTuple):
    """Which rows over the link are fetched in the order of their addresses.

    Sorting takes some 40 bytes of memory a row, too much for short rows, and the time of fetching some thousand rows.
    Pages of long rows are neighbours anyway, and few rows are far apart in any order.
    """

    row_bytes: range = range(64, 2**14)
    field_bytes: int = 2**30  # of a field that is larger
    rows: int = 2**15  # or more


SORTING = Sorting()
_SAMPLES = Grid(132, 256, 1)
_WORDS = (
    *("network", "table", "selection", "ends", "origins", "runs", "row_bytes", "width"),
    *("first", "stride", "words", "tile", "tiles", "all", "places", "size"),
)
"""The kernels' `Params`, but for `out`, which comes last."""
_PLACES = {word: place for place, word in enumerate(_WORDS)}
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
"""CUDA source of `permuted`, the twin of `gdsload.order.feistel.Feistel`, and of the hash under it."""
_GATHER = r"""
struct Params {
    const u64* network;    // all 0 where there is none; see _WORDS
    const i64* table;
    const i64* selection;
    const i64* ends;       // of the shards, or other runs, in samples
    const i64* origins;    // of the same: where sample 0 would lie
    u64 runs, row_bytes, width;
    u64 first, stride;     // first position of the first batch, and from batch to batch
    u64 words, tile;       // of a batch and of a tile, in words
    u64 tiles, all;        // of a batch, and of all batches
    const i64* places;     // of the rows in all batches, where they come in another order
    u64 size;              // rows of a batch
    WORD* out[MOST_BATCHES];
};

__device__ __forceinline__ u64 sample(const Params& p, u64 position) {
    u64 id = position;
    if (p.network) id = permuted(id, p.network);
    else if (p.table) id = p.table[id];
    return p.selection ? p.selection[id] : id;
}

__device__ __forceinline__ u64 address(const Params& p, u64 position) {
    const u64 id = sample(p, position);
    unsigned below = 0, above = p.runs;
    while (below < above) {
        const unsigned middle = (below + above) / 2;
        if ((u64)p.ends[middle] <= id) below = middle + 1; else above = middle;
    }
    return p.origins[below] + id * p.row_bytes;
}

// Here a word is a sample's number, and all batches are one behind the other.
extern "C" __global__ void LAYOUT samples(const Params p) {
    const u64 threads = (u64)gridDim.x * blockDim.x;
    for (u64 number = (u64)blockIdx.x * blockDim.x + threadIdx.x; number < p.all; number += threads) {
        const u64 batch = number / p.size;
        ((u64*)p.out[0])[number] = sample(p, p.first + batch * p.stride + number - batch * p.size);
    }
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
        #if SCATTERED
        u64 place = 0;
        if (row) {
            const u64 among_all = p.places[low + lane], b = among_all / p.size;
            place = (u64)(p.out[b] + (among_all - b * p.size) * width);
        }
        #else
        WORD* const target = p.out[batch] + begin;
        #endif
        unsigned t = (within + lane) / width, column = within + lane - t * width;
        for (unsigned i = lane; i - lane < words; i += 32 * DEPTH) {
            WORD found[DEPTH];
            #if SCATTERED
            WORD* into[DEPTH];
            #endif
            #pragma unroll
            for (int k = 0; k < DEPTH; ++k) {
                #if SCATTERED
                into[k] = (WORD*)__shfl_sync(0xffffffffu, place, t) + column;
                #endif
                const WORD* const source = (const WORD*)__shfl_sync(0xffffffffu, row, t);
                if (i + 32 * k < words) found[k] = source[column];
                t += down;
                column += right;
                if (column >= width) { column -= width; ++t; }
            }
            #pragma unroll
            for (int k = 0; k < DEPTH; ++k) if (i + 32 * k < words) {
                #if SCATTERED
                *into[k] = found[k];
                #else
                target[i + 32 * k] = found[k];
                #endif
            }
        }
    }
}
"""


_SOURCES = tuple(
    f"#define SCATTERED {scattered}\n#define MOST_BATCHES {MOST_BATCHES}\n{PERMUTATION}{_GATHER}"
    for scattered in (0, 1)
)
"""The first for rows that are fetched in the order of the batch, the second for those fetched in another order."""


@dataclass(slots=True, eq=False)
class PositionBatch:
    """Batches of one size, as positions in an order.

    Attributes:
        first: first position of the first batch.
        stride: from one batch's first position to the next one's.
        batches: how many there are.
        size: rows of each.
        ids: the sample id at each position, on the device, made by `PositionGather.beforehand`; int64. None where the
            recipe gives it.
        sorted: their samples in rising order, and the place of each, once a field has needed them.
    """

    first: int
    stride: int
    batches: int
    size: int
    ids: torch.Tensor | None = None
    sorted: tuple[torch.Tensor, torch.Tensor] | None = None


@dataclass(slots=True, eq=False)
class RowRuns:
    """The rows of one field, as the GPU finds them: in runs of consecutive samples.

    Attributes:
        ends: the sample id after the last of each run, in rising order; int64, on the device.
        origins: of each run, where the row of sample 0 would lie: its address is that + id * `row_bytes`; likewise.
        row_bytes: bytes a row; not 0.
        unit: bytes of the largest word, of 16 at most, that divides all addresses and the row.
    """

    ends: torch.Tensor
    origins: torch.Tensor
    row_bytes: int
    unit: int

    @property
    def width(self) -> int:
        """Words a row."""
        return self.row_bytes // self.unit


def word_of(addresses: IntArray, row_bytes: int) -> int:
    """See `RowRuns.unit`."""
    bits = int(np.bitwise_or.reduce(addresses)) | row_bytes
    return min(bits & -bits, 16)


class DeviceRows(RowRuns):
    """The rows of one field in whole shards.

    Args:
        gather: whose shards hold them.
        begin: address of the field's first row in each shard, shape ``[shards]``.
        row_bytes: bytes a row; not 0.
    """

    def __init__(self, gather: PositionGather, begin: IntArray, row_bytes: int) -> None:
        starts = np.concatenate([np.zeros(1, np.int64), gather.ends[:-1]])
        origins = gather.upload(begin - starts * row_bytes)
        super().__init__(gather.ends_there, origins, row_bytes, word_of(begin, row_bytes))


class PositionGather:
    """Gathers rows by their positions in an order.

    Args:
        device: the GPU.
        ends: first sample id after each shard, shape ``[shards]``.
        over_pcie: whether some of the shards are in host memory.
        recipe: the order's permutation; None where position and id are the same, or each gather is given the ids.
        selection: sample id of each position in the table; None where they are the same.
        aside: where work is queued that need not wait for rows; None for the stream on which they are gathered.
    """

    def __init__(
        self,
        device: torch.device,
        ends: IntArray,
        *,
        over_pcie: bool,
        recipe: Recipe | None = None,
        selection: IntArray | None = None,
        aside: SideStream | None = None,
    ) -> None:
        self.device, self.ends, self.over_pcie, self._aside = device, ends, over_pcie, aside
        self._uploads = Uploads(device)
        recipe = Recipe() if recipe is None else recipe
        network = None if recipe.network is None else recipe.network.view(np.int64)
        arrays = {"network": network, "table": recipe.table, "selection": selection}
        self._order = {name: self._uploads.add(array).data_ptr() for name, array in arrays.items() if array is not None}
        self.ends_there = self._uploads.add(ends)

    def upload(self, array: IntArray) -> torch.Tensor:
        """See `Uploads.add`."""
        return self._uploads.add(array)

    def beforehand(self, make: Callable[[], Tensors]) -> Tensors:
        """Queue the making of what is needed before rows are gathered, such as ids."""
        return make() if self._aside is None else self._aside(make)

    def rows(self, rows: RowRuns, positions: PositionBatch, outs: Sequence[torch.Tensor]) -> None:
        """Copy the rows of some batches, on the current stream.

        Args:
            rows: the field.
            positions: the batches.
            outs: for each batch a contiguous tensor of ``positions.size * rows.row_bytes`` bytes on the device, at a
                multiple of 16 bytes, as torch allocates them.
        """
        if not positions.size or not outs:
            return
        self._uploads.use()
        if self._far_apart(rows, positions.size * positions.batches) and len(outs) <= MOST_BATCHES:
            self._gather_sorted(rows, positions, outs)
            return
        for low in range(0, len(outs), MOST_BATCHES):
            some = outs[low : low + MOST_BATCHES]
            cut = self._cut(rows, positions.size, len(some))
            self._gather(rows, {**self._where(positions, low), **cut}, some)

    def _gather_sorted(self, rows: RowRuns, positions: PositionBatch, outs: Sequence[torch.Tensor]) -> None:
        """Copy the rows of all batches in the order of their sample ids, each to its place."""
        if positions.sorted is None:
            positions.sorted = self.beforehand(lambda: self._sorted(positions))
        samples, places = positions.sorted
        where = {"table": samples.data_ptr(), "places": places.data_ptr(), "size": positions.size}
        cut = self._cut(rows, len(samples), 1, most=max(_TILE_BYTES // rows.row_bytes, 1))
        self._gather(rows, {**where, **cut}, outs, scattered=True)

    def _sorted(self, positions: PositionBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """The samples at some positions in rising order, and the place of each among the batches' rows."""
        self._uploads.use()
        found = torch.empty(positions.size * positions.batches, dtype=torch.int64, device=self.device)
        cut = {"size": positions.size, "all": len(found)}
        self._launch("samples", 8, _SAMPLES, {**self._where(positions), **cut}, [found])
        samples, places = torch.sort(found)
        return samples, places

    def _cut(self, rows: RowRuns, size: int, batches: int, most: int = WARP) -> dict[str, int]:
        """How the words of batches of one size are shared out, in tiles of so many rows at most."""
        words, tile = size * rows.width, tile_of(size * batches, rows.width, self._grid.warps)
        tile = min(tile, most * rows.width)
        tiles = -(-words // tile)
        return {"words": words, "tile": tile, "tiles": tiles, "all": tiles * batches}

    @property
    def _grid(self) -> Grid:
        return OVER_PCIE if self.over_pcie else IN_VRAM

    def _far_apart(self, rows: RowRuns, count: int) -> bool:
        """Whether so many rows are better fetched in the order of their addresses."""
        if not self.over_pcie or count < SORTING.rows:
            return False
        return rows.row_bytes in SORTING.row_bytes and int(self.ends[-1]) * rows.row_bytes > SORTING.field_bytes

    def _where(self, positions: PositionBatch, low: int = 0) -> dict[str, int]:
        """The kernel's parameters for the batches from number `low` on: first position, stride and sample ids."""
        ids = {} if positions.ids is None else {"network": 0, "table": positions.ids.data_ptr()}
        first = positions.first + low * positions.stride
        return {**self._order, **ids, "first": first, "stride": positions.stride}

    def _gather(
        self, rows: RowRuns, params: dict[str, int], outs: Sequence[torch.Tensor], *, scattered: bool = False
    ) -> None:
        runs = {"ends": rows.ends.data_ptr(), "origins": rows.origins.data_ptr(), "runs": len(rows.ends)}
        row = {"row_bytes": rows.row_bytes, "width": rows.width}
        self._launch("gather", rows.unit, self._grid, {**params, **runs, **row}, outs, scattered=scattered)

    def _launch(
        self,
        name: str,
        unit: int,
        grid: Grid,
        params: dict[str, int],
        outs: Sequence[torch.Tensor],
        *,
        scattered: bool = False,
    ) -> None:
        words = np.zeros(len(_WORDS) + MOST_BATCHES, np.uint64)
        for word, value in params.items():
            words[_PLACES[word]] = value
        words[len(_WORDS) : len(_WORDS) + len(outs)] = [out.data_ptr() for out in outs]
        made = kernel(_SOURCES[scattered], name, unit, grid, self.device)
        launch(made, self.device, grid, words, over_pcie=self.over_pcie and name == "gather")


def tile_of(rows: int, width: int, warps: int) -> int:
    """Words that a warp copies at once: up to 32 rows, as each of its threads finds one, or a part of a row.

    Chosen so that all warps get the same number of tiles, where possible.

    Args:
        rows: how many there are.
        width: words of each.
        warps: warps that share them.
    """
    rounds = -(-rows // (WARP * warps))
    whole = -(-rows // (rounds * warps))
    if whole > 1 or width <= PART:
        return min(max(whole, WARP // width), WARP) * width
    return min(-(-rows * width // (warps * PART)) * PART, width)
