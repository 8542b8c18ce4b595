"""Position ids of block-shuffled batches, computed by the GPU: the twin of `BlockOrder` and `Schedule.runs`.

A kernel finds for each sample of some batches its lane, its window, its place within that, and its block. Places within
a large window are computed, those within a small one are looked up: in tables made when a window is reached.

Tables are made on their own stream. They depend on nothing that is queued elsewhere, so the GPU makes them while
it still gathers the batches before; the stream that batches are made on, whichever it is, waits for the event recorded
after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.kernels.launch import Grid, kernel, launch
from gdsload.kernels.position_kernels import PERMUTATION
from gdsload.kernels.shared_tensors import SharedTensors
from gdsload.order import BlockOrder, Schedule
from gdsload.order.permutation import EXACT_LIMIT
from gdsload.system.streams import on, side_stream

MOST_BLOCKS = 2**25
"""Blocks that may take 16 bytes each of the GPU's memory."""
MOST_WINDOWS = 256
"""Windows that one launch may use: the length of `table` in the kernel."""
_MOST_TABLES, _MOST_SORTED = 64, 2**21
"""Tables that are made at once, and numbers in them: sorting takes several times their 8 bytes for the moment."""
_ORDER_WORDS, _IDS_WORDS, _HASHES_WORDS = 4, 11, 3
_GRID = Grid(1056, 256, 1)
"""The most; a launch has no more blocks than it has numbers to write."""

_ORDER = (
    PERMUTATION
    + r"""
struct Order { u64 samples, lanes, window, key; };
struct Split { u64 each, rest; };                 // of a number: quotient and remainder, by the number of lanes
struct Window { u64 begin, size; };               // in positions of its lane

__device__ __forceinline__ Split split(const Order& o, u64 number) {
    Split s;
    s.each = number / o.lanes;
    s.rest = number - s.each * o.lanes;
    return s;
}

// gdsload.order.lanes: lane_share and lane_offset
__device__ __forceinline__ u64 share(const Order& o, const Split& s, u64 lane) {
    return s.each + (lane + s.rest >= o.lanes);
}

__device__ __forceinline__ u64 offset(const Order& o, const Split& s, u64 lane) {
    return s.each * lane + (lane + s.rest > o.lanes ? lane + s.rest - o.lanes : 0);
}

// gdsload.order.blocks: _first_window and _window_bounds
__device__ __forceinline__ u64 first_window(const Order& o, u64 lane, u64 length) {
    if (length <= o.window) return length;
    const u64 first = o.window * (lane + 1) / o.lanes;
    return first ? first : 1;
}

__device__ __forceinline__ Window bounds(const Order& o, u64 first, u64 number, u64 length) {
    Window w;
    const u64 stop = first + number * o.window;
    w.begin = number ? stop - o.window : 0;
    w.size = (stop < length ? stop : length) - w.begin;
    return w;
}

// gdsload.order.hashing: derive_key, part by part
__device__ __forceinline__ u64 derived(u64 key, u64 part) {
    return hashed(0, key * 0xD1342543DE82EF95ull + hashed(1, part));
}

__device__ __forceinline__ u64 key_of(u64 parts, u64 first, u64 purpose) {
    return derived(derived(hashed(0, parts ^ 0x243F6A8885A308D3ull), first), purpose);
}

__device__ __forceinline__ u64 window_key(const Order& o, u64 lane, u64 number) {
    return derived(derived(key_of(4, o.key, 3), lane), number);     // Purpose.WINDOW
}
"""
)
_IDS = r"""
struct Params {
    Order order;
    u64 step, global_batch;    // the first step; samples of a batch of all ranks
    u64 start, size, all;      // in a global batch: where this rank's samples begin, how many; and of all batches
    u64 lane, depth;           // of the tables: the first lane, and how many for each
    const i64 *cuts, *shifts;  // of the blocks: first position, and from there to the first id
    u64 blocks;
    i64* out;
    const i64* table[256];     // window w of lane l has number (l - lane) * depth + w % depth
};

// gdsload.order.permutation: Permutation of more than 65536 numbers
__device__ u64 mixed_up(u64 place, u64 n, u64 key) {
    u64 network[11];
    network[0] = n;
    network[1] = (u64)sqrt((double)(n - 1)) + 1;       // exact below 2**52
    network[2] = (n + network[1] - 1) / network[1];
    const u64 rounds = key_of(3, key, 4);              // Purpose.ROUND
    #pragma unroll
    for (int k = 0; k < 8; ++k) network[3 + k] = derived(rounds, k);
    return permuted(place, network);
}

extern "C" __global__ void LAYOUT ids(const Params p) {
    const Order& o = p.order;
    const Split samples = split(o, o.samples);
    const u64 threads = (u64)gridDim.x * blockDim.x;
    for (u64 number = (u64)blockIdx.x * blockDim.x + threadIdx.x; number < p.all; number += threads) {
        const u64 batch = number / p.size, in_batch = p.start + number - batch * p.size;
        const u64 given = (p.step + batch) * p.global_batch;
        const Split before = split(o, given), after = split(o, min(given + p.global_batch, o.samples));
        u64 lane = 0;
        for (u64 above = o.lanes; above - lane > 1;) {
            const u64 middle = (lane + above) / 2;
            if (offset(o, after, middle) - offset(o, before, middle) <= in_batch) lane = middle; else above = middle;
        }
        const u64 skipped = offset(o, after, lane) - offset(o, before, lane);
        const u64 place = share(o, before, lane) + in_batch - skipped;
        const u64 length = share(o, samples, lane), first = first_window(o, lane, length);
        const u64 window = place < first ? 0 : 1 + (place - first) / o.window;
        const Window w = bounds(o, first, window, length);
        const u64 within = w.size > 65536
            ? mixed_up(place - w.begin, w.size, window_key(o, lane, window))
            : p.table[(lane - p.lane) * p.depth + window % p.depth][place - w.begin];
        const u64 position = offset(o, samples, lane) + w.begin + within;
        unsigned block = 0;
        for (unsigned above = p.blocks; above - block > 1;) {
            const unsigned middle = (block + above) / 2;
            if ((u64)p.cuts[middle] <= position) block = middle; else above = middle;
        }
        p.out[number] = position + p.shifts[block];
    }
}
"""
_HASHES = r"""
struct Params {
    Order order;
    u64 width, all;            // numbers of a table, and of all tables
    i64* out;
    u64 window[128];           // for each table: lane, and number of the window
};

extern "C" __global__ void LAYOUT hashes(const Params p) {
    const Order& o = p.order;
    const u64 threads = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < p.all; i += threads) {
        const u64 table = i / p.width, number = i - table * p.width;
        const u64 lane = p.window[2 * table], window = p.window[2 * table + 1];
        const u64 length = share(o, split(o, o.samples), lane);
        const Window w = bounds(o, first_window(o, lane, length), window, length);
        // Unsigned numbers in the order of signed ones; what fills up a row comes last.
        p.out[i] = number < w.size
            ? (i64)(hashed(number, window_key(o, lane, window)) ^ 0x8000000000000000ull)
            : 0x7FFFFFFFFFFFFFFFll;
    }
}
"""

_Place = tuple[int, int]
"""A window: its lane, and its number there."""
_Tables = dict[_Place, tuple[SharedTensors, int]]
"""For each window what its table was made with, and the table's address."""
_Reached = tuple[range, int, dict[_Place, int]]
"""The windows that some steps' batches may be made from: their lanes, how many they are in a lane at most, and the
samples of each."""


class BlockIds:
    """Makes the position ids of consecutive batches of one epoch, on any stream and by any thread.

    Order and schedule are `possible` together; the schedule says which positions each step of this rank takes.

    Raises:
        torch.OutOfMemoryError: if the device has no room for the blocks.
    """

    def __init__(self, device: torch.device, order: BlockOrder, schedule: Schedule) -> None:
        self.device, self._schedule = device, schedule
        self._lanes, self._window = order.lanes, order.window
        self._lengths = [order.lane_length(lane) for lane in range(order.lanes)]
        self._width = min(order.window, EXACT_LIMIT, max(self._lengths))
        self._firsts = [order.window_at(lane, 0)[1] if length else 0 for lane, length in enumerate(self._lengths)]
        self._words = (order.samples, order.lanes, order.window, order.key)
        self._stream = side_stream(device)
        self._tables: _Tables = {}
        sequence = order.sequence()
        self._shared = SharedTensors(device)
        cuts = self._shared.add(sequence.cuts[:-1])
        shifts = self._shared.add(sequence.starts - sequence.cuts[:-1])
        self._blocks = (cuts.data_ptr(), shifts.data_ptr(), len(sequence.starts))

    @staticmethod
    def possible(order: BlockOrder, schedule: Schedule) -> bool:
        """Return whether the GPU has room for the blocks, and no batch uses more windows than a launch can."""
        if not 0 < order.blocks <= MOST_BLOCKS:
            return False
        share = -(-min(schedule.global_batch, order.samples) // order.lanes)
        # All windows but a lane's first and last are equally long: at most so many edges are between these samples.
        edges = -(-(share - 1) // order.window)
        return order.lanes * (1 + edges) <= MOST_WINDOWS

    @property
    def tabled(self) -> set[tuple[int, int]]:
        """The windows whose tables are held: lane, and number of the window there."""
        return set(self._tables)

    def __call__(self, steps: range) -> torch.Tensor:
        """Queue the making of some steps' position ids on the current stream.

        They are as `Ordered.positions` gives them: int64, on the device, shape ``[samples of all steps]``.

        Raises:
            torch.OutOfMemoryError: if the device has no room for them, or for the tables of windows.
        """
        schedule = self._schedule
        sizes = schedule.sizes(steps)
        # Not from their sizes: this rank's part of a last, smaller batch may be as large as that of a full one.
        full = max(schedule.samples // schedule.global_batch - steps.start, 0)
        out = torch.empty(sum(sizes), dtype=torch.int64, device=self.device)
        self._shared.use()
        address = out.data_ptr()
        for part in (steps[:full], steps[full:]):
            for some, (lanes, depth, sizes_of) in self.launches(part):
                self._launch(some, lanes, depth, self._reach(sizes_of), address)
                address += 8 * len(some) * schedule.size(some[0])
        return out

    @classmethod
    def rehearse(cls, device: torch.device, order: BlockOrder, schedule: Schedule) -> None:
        """Have the GPU load all kernels that an epoch's ids take: torch sorts one window by other ones than several."""
        with on(side_stream(device)):
            ids = cls(device, order, schedule)
            ids(range(min(2, schedule.steps)))
            ids._make([(0, 0)])

    def launches(self, steps: range) -> Iterator[tuple[range, _Reached]]:
        """Steps of one size, split into launches so that none uses too many windows."""
        if not steps or not self._schedule.size(steps[0]):
            return
        lanes, depth, sizes = self._reached(steps)
        if len(steps) == 1 or len(lanes) * depth <= MOST_WINDOWS:
            yield steps, (lanes, depth, sizes)
            return
        for half in (steps[: len(steps) // 2], steps[len(steps) // 2 :]):
            yield from self.launches(half)

    def _reached(self, steps: range) -> _Reached:
        """The windows that steps of one size use, and perhaps a few more."""
        schedule, lanes = self._schedule, self._lanes
        before, after = schedule.position(steps.start), schedule.position(steps.stop)
        low, high = self._lanes_of(steps)
        sizes: dict[_Place, int] = {}
        depth = 1
        for lane in range(low, high + 1):
            first, length = self._firsts[lane], self._lengths[lane]
            start = (before + lane) // lanes
            if start >= length:
                continue
            # Also for a lane that no sample is taken from: its window is only partly handed out, and must be kept.
            last = max((after + lane) // lanes - 1, start)
            numbers = range(self._number(first, start), self._number(first, last) + 1)
            depth = max(depth, len(numbers))
            for number in numbers:
                stop = first + number * self._window
                sizes[lane, number] = min(stop, length) - (stop - self._window if number else 0)
        return range(low, high + 1), depth, sizes

    def _number(self, first: int, position: int) -> int:
        """The number of the window that holds a position of a lane; `first`: length of the lane's first window."""
        return 0 if position < first else 1 + (position - first) // self._window

    def _lanes_of(self, steps: range) -> _Place:
        """The first and the last lane that this rank takes samples from in steps of one size, or a wider range.

        A global batch of n samples takes n / lanes from each lane, and all lanes before one differ from their share
        by at most lanes / 4 together; by nothing where all numbers are multiples of `lanes`.
        """
        schedule, lanes = self._schedule, self._lanes
        before, after = schedule.position(steps[0]), schedule.position(steps[0] + 1)
        start, stop = schedule.span(steps[0])
        n, even = after - before, not (before % lanes or after % lanes or schedule.global_batch % lanes)
        slack = 0 if even else lanes
        low = (4 * (start - before) - slack) * lanes // (4 * n)
        high = (4 * (stop - 1 - before) + slack) * lanes // (4 * n)
        return max(low, 0), min(high, lanes - 1)

    def _reach(self, sizes: dict[_Place, int]) -> _Tables:
        """The tables of these windows; all others are dropped. Two threads that call it both get theirs."""
        wanted = [place for place, size in sizes.items() if size <= EXACT_LIMIT]
        tables = self._tables
        kept = {place: tables[place] for place in wanted if place in tables}
        missing = [place for place in wanted if place not in kept]
        most = max(min(_MOST_SORTED // self._width, _MOST_TABLES), 1)
        for low in range(0, len(missing), most):
            kept |= self._make(missing[low : low + most])
        self._tables = kept
        return kept

    def _make(self, places: Sequence[_Place]) -> _Tables:
        """Queue the making of tables: for each window its numbers, sorted by their hashes."""
        # All as wide as the widest: torch sorts short rows by other kernels, which would have to be loaded, too.
        width, count = self._width, self._width * len(places)
        with on(self._stream):
            hashes = torch.empty((len(places), width), dtype=torch.int64, device=self.device)
            words = _ORDER_WORDS + _HASHES_WORDS
            params = np.zeros(words + 2 * _MOST_TABLES, np.uint64)
            params[:words] = (*self._words, width, count, hashes.data_ptr())
            params[words : words + 2 * len(places)] = [number for place in places for number in place]
            self._queue(_HASHES, "hashes", count, params)
            tables = torch.sort(hashes, dim=1, stable=True).indices
            made = SharedTensors(self.device, self._stream)
            made.keep(tables)
        return {place: (made, table.data_ptr()) for place, table in zip(places, tables, strict=True)}

    def _launch(self, steps: range, lanes: range, depth: int, tables: _Tables, out: int) -> None:
        """Queue the making of the ids of steps of one size, from windows of some lanes; `out`: the first's address."""
        schedule = self._schedule
        begin, stop = schedule.span(steps[0])
        size, words = stop - begin, _ORDER_WORDS + _IDS_WORDS
        params = np.zeros(words + MOST_WINDOWS, np.uint64)
        params[:words] = (
            *self._words, steps[0], min(schedule.global_batch, schedule.samples), begin - schedule.position(steps[0]),
            size, size * len(steps), lanes.start, depth, *self._blocks, out,
        )  # fmt: skip
        for made in {made for made, _ in tables.values()}:
            made.use()
        for (lane, number), (_, address) in tables.items():
            params[words + (lane - lanes.start) * depth + number % depth] = address
        self._queue(_IDS, "ids", size * len(steps), params)

    def _queue(self, source: str, name: str, count: int, params: NDArray[np.uint64]) -> None:
        """Queue a kernel that writes so many numbers."""
        compiled = kernel(_ORDER + source, name, 8, _GRID, self.device)
        blocks = min(-(-count // _GRID.threads), _GRID.blocks)
        launch(compiled, self.device, Grid(blocks, _GRID.threads, _GRID.depth), params)
