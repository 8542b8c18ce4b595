"""The gather from positions: the GPU itself computes which samples they are, and where those are located.

One kernel evaluates the order's permutation (the twin of `gdsload.order.permutation`, bit for bit), finds the shard,
and copies the row. Rows over the link that are no whole words of 16 bytes are pieces: such a kernel makes a table of
them, of 32 bytes a row, by which that of `gather_pieces` copies them. So planning a batch costs the host a few numbers,
however small its rows are. The GPU must be able to address every shard: in its own memory, or in registered host
memory.

Rows out of much host memory are fetched in the order of their addresses. The GPU caches the translations of only so
many of the host's pages, and has to look up all others; it finds neighbours of the last ones far more quickly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gdsload.kernels.gather_pieces import as_pieces, compile_pieces, queue_pieces
from gdsload.kernels.launch import IN_VRAM, OVER_PCIE, WARP, Grid, kernel, launch, word_in
from gdsload.kernels.position_kernels import MOST_BATCHES, SOURCES, WORDS
from gdsload.kernels.shared_tensors import SharedTensors
from gdsload.system.arrays import IntArray
from gdsload.system.streams import on, side_stream

Tensors = tuple[torch.Tensor, ...]
PART = 256
"""Words of a long row from which a part of it is a separate tile."""
_TILE_BYTES = 2**15
"""Bytes of such rows that a warp takes at once: few, so that all warps are close to each other in the file."""


SORTED_ROW_BYTES, SORTED_FIELD_BYTES, SORTED_ROWS = range(64, 2**14), 2**30, 2**15
"""Rows of so many bytes, of a field of more bytes than that, are fetched over the link in the order of their addresses,
where there are so many rows or more.

Sorting takes some 40 bytes of memory a row, too much for short rows, and the time of fetching some thousand rows. Pages
of long rows are neighbours anyway, and few rows are far apart in any order.
"""
_SAMPLES = Grid(132, 256, 1)
_PLACES = {word: place for place, word in enumerate(WORDS)}


@dataclass(slots=True, eq=False)
class PositionBatch:
    """Batches of one size, as positions in an order.

    Attributes:
        first: first position of the first batch.
        stride: from one batch's first position to the next one's.
        batches: how many there are.
        size: rows of each.
        ids: the sample id at each position, on the device, made by `PositionGather.on_side_stream`; int64. None where
            the recipe gives it.
        sorted: their samples in rising order, and the place of each, once a field has needed them.
    """

    first: int
    stride: int
    batches: int
    size: int
    ids: torch.Tensor | None = None
    sorted: Tensors | None = None


@dataclass(slots=True, eq=False)
class DeviceRows:
    """The rows of one field, as the GPU finds them: in runs of consecutive samples.

    Attributes:
        ends: the sample id after the last of each run, in rising order; int64, on the device.
        origins: of each run, where the row of sample 0 would be: its address is that + id * `row_bytes`; likewise.
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
    """See `DeviceRows.unit`: of rows' addresses, or others that are whole rows from there."""
    return word_in(int(np.bitwise_or.reduce(addresses)) | row_bytes)


class PositionGather:
    """Gathers rows by their positions in an order.

    Args:
        ends: first sample id after each shard, shape ``[shards]``.
        over_pcie: whether some of the shards are in host memory.
        recipe: the order's permutation, see `Permutation.recipe`; None where position and id are the same, or each
            gather is given the ids.
        selection: sample id of each position in the table; None where they are the same.
        side: queues the making of tensors, such as ids, where it need not wait for rows; None: on the stream on which
            they are gathered.
    """

    def __init__(
        self,
        device: torch.device,
        ends: IntArray,
        *,
        over_pcie: bool,
        recipe: Mapping[str, IntArray] | None = None,
        selection: IntArray | None = None,
        side: Callable[[Callable[[], Tensors]], Tensors] | None = None,
    ) -> None:
        self.device, self.ends, self.over_pcie, self._side = device, ends, over_pcie, side
        self._shared = SharedTensors(device)
        arrays = {**(recipe or {}), "selection": selection}
        self._order = {name: self._shared.add(array).data_ptr() for name, array in arrays.items() if array is not None}
        self.ends_there = self._shared.add(ends)

    def upload(self, array: IntArray) -> torch.Tensor:
        """See `SharedTensors.add`."""
        return self._shared.add(array)

    def on_side_stream(self, make: Callable[[], Tensors]) -> Tensors:
        """Queue the making of what is needed before rows are gathered, such as ids."""
        return make() if self._side is None else self._side(make)

    def rows(self, rows: DeviceRows, positions: PositionBatch, outs: Sequence[torch.Tensor]) -> None:
        """Copy a field's rows of some batches, on the current stream.

        `outs` has for each batch a contiguous tensor of ``positions.size * rows.row_bytes`` bytes on the device, at a
        multiple of 16 bytes, as torch allocates them.
        """
        if not positions.size or not outs:
            return
        self._shared.use()
        pieces = self.over_pcie and as_pieces(rows.unit, rows.row_bytes)
        if self._far_apart(rows, positions.size * positions.batches) and len(outs) <= MOST_BATCHES:
            where = self._in_order_of_ids(positions)
            if pieces:
                self._gather_pieces(rows, {**where, "stride": positions.size}, outs)
                return
            cut = self._cut(rows, positions.size * positions.batches, 1, most=max(_TILE_BYTES // rows.row_bytes, 1))
            self._gather(rows, {**where, **cut}, outs, scattered=True)
            return
        for low in range(0, len(outs), MOST_BATCHES):
            some = outs[low : low + MOST_BATCHES]
            if pieces:
                self._gather_pieces(rows, {**self._where(positions, low), "size": positions.size}, some)
                continue
            cut = self._cut(rows, positions.size, len(some))
            self._gather(rows, {**self._where(positions, low), **cut}, some)

    def _gather_pieces(self, rows: DeviceRows, where: dict[str, int], outs: Sequence[torch.Tensor]) -> None:
        """Copy the rows of some batches as pieces. Their table is made while rows of earlier batches still arrive."""
        (table,) = self.on_side_stream(lambda: (self._pieces(rows, where, outs),))
        words = table.shape[1] * (rows.row_bytes // 16 + 2)  # about: the rest is for the GPU to know
        queue_pieces(table, words, self.device, over_pcie=True)

    def _pieces(self, rows: DeviceRows, where: dict[str, int], outs: Sequence[torch.Tensor]) -> torch.Tensor:
        """The table of pieces of some batches' rows; see `queue_pieces`."""
        self._shared.use()
        count = where["size"] * len(outs)
        table = torch.empty(4, count, dtype=torch.int64, device=self.device)
        params = {**where, **self._runs(rows), "all": count, "pieces": table.data_ptr()}
        self._launch("pieces", 1, _SAMPLES, params, outs)
        table[3].cumsum_(0)
        return table

    def _in_order_of_ids(self, positions: PositionBatch) -> dict[str, int]:
        """The kernel's parameters for the rows of all batches in the order of their sample ids, each with its place."""
        if positions.sorted is None:
            positions.sorted = self.on_side_stream(lambda: self._sorted(positions))
        samples, places = positions.sorted
        return {"table": samples.data_ptr(), "places": places.data_ptr(), "size": positions.size}

    def _sorted(self, positions: PositionBatch) -> Tensors:
        """The samples at some positions in rising order, and the place of each among the batches' rows."""
        self._shared.use()
        found = torch.empty(positions.size * positions.batches, dtype=torch.int64, device=self.device)
        cut = {"size": positions.size, "all": len(found)}
        self._launch("samples", 8, _SAMPLES, {**self._where(positions), **cut}, [found])
        samples, places = torch.sort(found)
        return samples, places

    def _cut(self, rows: DeviceRows, size: int, batches: int, most: int = WARP) -> dict[str, int]:
        """The cut of the words of batches of one size into tiles, of so many rows at most."""
        words, tile = size * rows.width, tile_of(size, batches, rows.width, self._grid.warps)
        tile = min(tile, most * rows.width)
        tiles = -(-words // tile)
        return {"words": words, "tile": tile, "tiles": tiles, "all": tiles * batches}

    @property
    def _grid(self) -> Grid:
        return OVER_PCIE if self.over_pcie else IN_VRAM

    def _far_apart(self, rows: DeviceRows, count: int) -> bool:
        """Return whether so many rows are better fetched in the order of their addresses."""
        return self.over_pcie and count >= SORTED_ROWS and _may_be_sorted(rows.row_bytes, int(self.ends[-1]))

    def _where(self, positions: PositionBatch, low: int = 0) -> dict[str, int]:
        """The kernel's parameters for the batches from number `low` on: first position, stride and sample ids."""
        ids = {} if positions.ids is None else {"network": 0, "table": positions.ids.data_ptr()}
        first = positions.first + low * positions.stride
        return {**self._order, **ids, "first": first, "stride": positions.stride}

    def _gather(
        self, rows: DeviceRows, params: dict[str, int], outs: Sequence[torch.Tensor], *, scattered: bool = False
    ) -> None:
        params = {**params, **self._runs(rows), "width": rows.width}
        self._launch("gather", rows.unit, self._grid, params, outs, scattered=scattered)

    @staticmethod
    def _runs(rows: DeviceRows) -> dict[str, int]:
        """The kernels' parameters for a field."""
        runs = {"ends": rows.ends.data_ptr(), "origins": rows.origins.data_ptr(), "runs": len(rows.ends)}
        return {**runs, "row_bytes": rows.row_bytes}

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
        words = np.zeros(len(WORDS) + MOST_BATCHES, np.uint64)
        for word, value in params.items():
            words[_PLACES[word]] = value
        words[len(WORDS) : len(WORDS) + len(outs)] = [out.data_ptr() for out in outs]
        made = kernel(SOURCES[scattered], name, unit, grid, self.device)
        launch(made, self.device, grid, words, over_pcie=self.over_pcie and name == "gather")


def rows_in_shards(gather: PositionGather, begin: IntArray, row_bytes: int) -> DeviceRows:
    """The rows of one field in whole shards, which begin at these addresses; shape ``[shards]``."""
    starts = np.concatenate([np.zeros(1, np.int64), gather.ends[:-1]])
    origins = gather.upload(begin - starts * row_bytes)
    return DeviceRows(gather.ends_there, origins, row_bytes, word_of(begin, row_bytes))


def _may_be_sorted(row_bytes: int, samples: int) -> bool:
    """Return whether many rows at once of a field of so many samples are fetched in the order of their addresses."""
    return row_bytes in SORTED_ROW_BYTES and samples * row_bytes > SORTED_FIELD_BYTES


def compile_gather(device: torch.device, fields: Iterable[int], samples: int) -> None:
    """Compile the kernels of `PositionGather` over the link, and load torch's for sorting, before they are needed."""
    for row_bytes in set(fields):
        unit, ordered = word_in(row_bytes), _may_be_sorted(row_bytes, samples)
        if as_pieces(unit, row_bytes):
            kernel(SOURCES[False], "pieces", 1, _SAMPLES, device)
            compile_pieces(device, over_pcie=True)
        else:
            for scattered in (False, True)[: 1 + ordered]:
                kernel(SOURCES[scattered], "gather", unit, OVER_PCIE, device)
        if ordered:
            kernel(SOURCES[False], "samples", 8, _SAMPLES, device)
            with on(side_stream(device)):
                torch.sort(torch.zeros(SORTED_ROWS, dtype=torch.int64, device=device))


@functools.lru_cache(maxsize=256)
def tile_of(size: int, batches: int, width: int, warps: int) -> int:
    """Words of a batch that a warp copies at once: up to 32 rows, as each of its threads finds one, or a part of a row.

    Chosen so that the warp with most to do has as little as possible, where to begin a tile takes as long as `PART`
    words.
    """
    rows = size * batches
    rounds = -(-rows // (WARP * warps))
    whole = -(-rows // (rounds * warps))
    if whole == 1 and width > PART:
        share = min(-(-rows * width // (warps * PART)) * PART, width)
        # Where little of a row is left after a share, that is a tile, too, and its warp may be one with a share.
        fewer = max(-(-width // share) - 1, 1)
        return min(
            (share, min(-(-width // (fewer * PART)) * PART, width)),
            key=lambda tile: -(-rows * -(-width // tile) // warps) * (tile + PART),
        )

    def longest(count: int) -> int:
        return -(-(-(-size // count) * batches) // warps) * (count * width + PART)

    least = min(max(WARP // width, 1), WARP)
    return min(range(min(max(whole, least), WARP), least - 1, -1), key=longest) * width
