"""Ids of block-shuffled batches, with the kernels played by the host: who gets which tables, and when they are made.

That the kernels themselves are the host's order is tested on a GPU (tests/kernels/test_block_ids_on_gpu.py).
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import contextmanager
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gdsload.engine.steps import Ordered
from gdsload.kernels import block_ids, shared_tensors
from gdsload.kernels.block_ids import MOST_WINDOWS, BlockIds
from gdsload.order import BlockOrder, Purpose, Schedule, derive_key, feistel
from gdsload.order.hashing import hash_into
from gdsload.order.permutation import EXACT_LIMIT, exact_table
from tests.engine.on_host import CPU, at
from tests.order.made import block_orders, schedules

LIMIT = 60


def windows_of(order, lane):
    """The positions [start, stop) of each window of a lane."""
    found, position = [], 0
    while position < order.lane_length(lane):
        found.append(order.window_at(lane, position))
        position = found[-1][1]
    return found


@lru_cache(maxsize=1000)
def table_of(size, key):
    """Each launch looks at the tables of its windows again."""
    return exact_table(size, key)


class Machine:
    """Plays the GPU: runs kernels, and looks whether all that they need is where they look for it."""

    def __init__(self, order, schedule):
        self.order, self.schedule = order, schedule
        self.bounds = [windows_of(order, lane) for lane in range(order.lanes)]
        self.sources: dict[str, str] = {}
        self.most_tables = 0
        self.hashed, self.launched, self.together = [], [], []
        self.handle, self.waited = 0, []

    @contextmanager
    def on(self, stream):
        before, self.handle = self.handle, stream.cuda_stream
        yield
        self.handle = before

    def current_stream(self, _device):
        return SimpleNamespace(wait_event=lambda event: self.waited.append((self.handle, event)))

    def kernel(self, source, name, *_rest):
        self.sources[name] = source
        return name

    def launch(self, name, _device, grid, params):
        words = params.tolist()
        assert words[:4] == [self.order.samples, self.order.lanes, self.order.window, self.order.key]
        count = getattr(self, name)(words[4:])
        assert (grid.blocks - 1) * grid.threads < count

    def hashes(self, words):
        width, count, out, *windows = words
        self.together.append(count // width)
        self.most_tables = len(windows) // 2
        for row in range(count // width):
            lane, window = windows[2 * row : 2 * row + 2]
            low, high = self.bounds[lane][window]
            size = high - low
            found = np.arange(size, dtype=np.uint64)
            hash_into(found, np.uint64(self.window_key(lane, window)), found, np.empty_like(found))
            target = at(out + 8 * width * row, width)
            target[:size] = (found ^ np.uint64(2**63)).view(np.int64)
            target[size:] = 2**63 - 1
            self.hashed.append((lane, window))
        return count

    def ids(self, words):
        step, _, start, size, count, lane, depth, _, _, _, out, *tables = words
        assert len(tables) == MOST_WINDOWS
        steps, schedule = range(step, step + count // size), self.schedule
        assert {(schedule.span(one)[0] - schedule.position(one), schedule.size(one)) for one in steps} == {
            (start, size)
        }
        for run in schedule.runs_of(steps):
            for window in range(*self.windows(run)):
                low, high = self.bounds[run.lane][window]
                if high - low <= block_ids.EXACT_LIMIT:
                    table = at(tables[(run.lane - lane) * depth + window % depth], high - low)
                    assert np.array_equal(table, table_of(high - low, self.window_key(run.lane, window)))
        at(out, count)[:] = Ordered(self.order, schedule).positions(steps)
        self.launched.append(steps)
        return count

    def windows(self, run):
        starts = [start for start, _ in self.bounds[run.lane]]
        return bisect_right(starts, run.start) - 1, bisect_right(starts, run.stop - 1)

    def window_key(self, lane, window):
        return derive_key(self.order.key, Purpose.WINDOW, lane, window)


@contextmanager
def machine(order, schedule):
    found = Machine(order, schedule)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_ids, "kernel", found.kernel)
        patch.setattr(block_ids, "launch", found.launch)
        for module in (block_ids, shared_tensors):
            patch.setattr(module, "side_stream", lambda _device: SimpleNamespace(cuda_stream=99))
            patch.setattr(module, "on", found.on)
        patch.setattr(shared_tensors, "record", lambda stream: ("behind", stream.cuda_stream))
        patch.setattr(shared_tensors, "stream_handle", lambda _device: found.handle)
        patch.setattr(shared_tensors, "current_stream", found.current_stream)
        patch.setattr(torch.Tensor, "record_stream", lambda _tensor, stream: stream)
        yield found, BlockIds(CPU, order, schedule)


def block_order(samples=1000, block=30, window=50, lanes=4, key=2**63 + 7):
    return BlockOrder([samples - samples // 3, 0, samples // 3], block=block, window=window, lanes=lanes, key=key)


EPOCHS = block_orders(st.lists(st.integers(0, 200), min_size=1, max_size=5), lanes=70).flatmap(
    lambda order: st.tuples(st.just(order), schedules(order.samples, order.lanes, ["share", "drop"], batches=300))
)


@settings(max_examples=40)
@given(EPOCHS, st.data())
@example((block_order(277 * 2, lanes=3), Schedule(277 * 2, 139, 1, 2, lanes=3)), None)
def test_any_steps_have_the_tables_of_their_windows_and_get_all_their_ids(epoch, data):
    order, schedule = epoch
    if not schedule.steps or not BlockIds.possible(order, schedule):
        return
    host = Ordered(order, schedule)
    with machine(order, schedule), pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_ids, "EXACT_LIMIT", LIMIT)
        ids = BlockIds(CPU, order, schedule)
        step = 0
        for _ in range(8):
            count = data.draw(st.integers(1, 70)) if data else 2
            steps = range(step, min(step + count, schedule.steps))
            assert np.array_equal(ids(steps).numpy(), host.positions(steps))
            again = steps.stop == schedule.steps or (data and not data.draw(st.integers(0, 5)))
            step = (data.draw(st.integers(0, schedule.steps - 1)) if data else 0) if again else steps.stop
        for step in range(schedule.steps):  # no single batch meets too many windows
            assert all(
                len(lanes) * depth <= MOST_WINDOWS for _, (lanes, depth, _) in ids.launches(range(step, step + 1))
            )


@pytest.mark.parametrize(
    ("options", "batch_size", "possible"),
    [
        ({}, 64, True),
        ({"samples": 0}, 64, False),
        ({"lanes": 256, "window": 64}, 256, True),
        ({"lanes": 257, "window": 64}, 1, False),
        ({"lanes": 1, "window": 1}, 256, True),
        ({"lanes": 1, "window": 1}, 257, False),
        ({"lanes": 128, "window": 1}, 256, True),
        ({"lanes": 128, "window": 1}, 257, False),
    ],
)
def test_which_orders_are_possible(options, batch_size, possible):
    order = block_order(**options)
    assert BlockIds.possible(order, Schedule(order.samples, batch_size, lanes=order.lanes)) is possible


def test_blocks_must_have_room(monkeypatch):
    order, schedule = block_order(block=1), Schedule(1000, 10, lanes=4)
    monkeypatch.setattr(BlockOrder, "sequence", None)  # they need not be made for that
    monkeypatch.setattr(block_ids, "MOST_BLOCKS", 1000)
    assert BlockIds.possible(order, schedule)
    monkeypatch.setattr(block_ids, "MOST_BLOCKS", 999)
    assert not BlockIds.possible(order, schedule)


@pytest.mark.parametrize("group", [1, 3, 40])
@pytest.mark.parametrize(("batch_size", "world_size"), [(1, 1), (7, 1), (5, 3), (64, 1)])
def test_each_table_is_made_once_on_the_way_and_again_on_the_way_back(batch_size, world_size, group):
    """Also where a lane's turn does not come for several batches."""
    order = block_order()
    schedule = Schedule(1000, batch_size, world_size - 1, world_size, "drop", order.lanes)
    with machine(order, schedule) as (found, ids):
        for low in range(0, schedule.steps, group):
            ids(range(low, min(low + group, schedule.steps)))
            most = 2 + group * batch_size * world_size // order.window
            assert all(sum(lane == one for one, _ in ids.tabled) <= most for lane in range(order.lanes))
        last = [order.lane_length(lane) - 1 for lane in range(order.lanes)]
        windows = sum(order._window_number(lane, position) + 1 for lane, position in enumerate(last))
        assert len(found.hashed) == len(set(found.hashed)) <= windows
        held, before = ids.tabled, len(found.hashed)
        ids(range(1))
        assert set(found.hashed[before:]) == ids.tabled - held


def test_a_rehearsal_sorts_several_windows_and_one_alone():
    order, schedule = block_order(), Schedule(1000, 64, lanes=4)
    with machine(order, schedule) as (found, _):
        BlockIds.rehearse(CPU, order, schedule)
        assert min(found.together) == 1 < max(found.together)


def test_another_thread_may_ask_for_other_steps_meanwhile():
    """Two threads make groups at the moment when all shards come within reach."""
    order, schedule = block_order(), Schedule(1000, 64, lanes=4)
    host, others = Ordered(order, schedule), []
    with machine(order, schedule) as (found, ids), pytest.MonkeyPatch.context() as patch:

        def launch(name, *arguments):
            if name == "ids" and not others:
                others.append(None)
                others[0] = ids(range(12, 14)).numpy().copy()
            found.launch(name, *arguments)

        patch.setattr(block_ids, "launch", launch)  # taken back before the machine is
        found_ids = ids(range(2))
    assert np.array_equal(found_ids.numpy(), host.positions(range(2)))
    assert np.array_equal(others[0], host.positions(range(12, 14)))


def test_a_rank_has_tables_of_its_own_lanes_only():
    order = block_order(4000, window=100, lanes=8)
    for rank in range(8):
        schedule = Schedule(4000, 20, rank, 8, lanes=8)
        with machine(order, schedule) as (found, ids):
            for step in range(schedule.steps):
                ids(range(step, step + 1))
        assert {lane for lane, _ in found.hashed} == {rank}


def test_large_windows_need_no_tables():
    order = BlockOrder([EXACT_LIMIT * 5], block=1000, window=EXACT_LIMIT + 1, lanes=1, key=1)
    schedule = Schedule(order.samples, 50_000)
    with machine(order, schedule) as (found, ids):
        ids(range(5))
        assert not found.hashed
        ids(range(5, 7))
    assert found.hashed == [(0, 4)], "the last is a short one"


def test_tables_are_no_wider_than_a_lane_is_long(monkeypatch):
    order = BlockOrder([1000], block=10, window=2**20, lanes=4, key=1)
    schedule = Schedule(1000, 10, lanes=4)
    widths, real = set(), torch.sort
    monkeypatch.setattr(torch, "sort", lambda rows, **rest: (widths.add(rows.shape[1]), real(rows, **rest))[1])
    with machine(order, schedule) as (_, ids):
        found = ids(range(100))
    assert np.array_equal(found.numpy(), Ordered(order, schedule).positions(range(100)))
    assert widths == {250}


def test_few_numbers_are_sorted_at_once(monkeypatch):
    monkeypatch.setattr(block_ids, "_MOST_SORTED", 120)
    order, schedule = block_order(lanes=5), Schedule(1000, 100, lanes=5)
    sorts = []
    real = torch.sort
    monkeypatch.setattr(torch, "sort", lambda numbers, **rest: (sorts.append(numbers.shape), real(numbers, **rest))[1])
    with machine(order, schedule) as (_, ids):
        ids(range(1))
    assert sum(rows for rows, _ in sorts) > len(sorts) > 1
    assert all(rows * width <= 120 for rows, width in sorts)


def test_each_stream_waits_once_for_tables_that_another_one_makes():
    order, schedule = block_order(), Schedule(1000, 10, lanes=4)
    with machine(order, schedule) as (found, ids):
        for handle, steps in [(1, range(1)), (1, range(1, 2)), (2, range(2, 3)), (1, range(3, 4))]:
            found.handle = handle
            ids(steps)
        assert found.handle == 1
    assert found.waited[:2] == [(1, ("behind", 99)), (2, ("behind", 99))]
    assert len(found.waited) == 2, "these batches meet no other windows"


def test_the_constants_of_the_kernels_are_those_of_the_order():
    """They stand in the text as numbers."""
    order, schedule = block_order(), Schedule(1000, 10, lanes=4)
    with machine(order, schedule) as (found, ids):
        ids(range(1))
    source = found.sources["ids"]
    assert f"w.size > {EXACT_LIMIT}" in source
    assert (Purpose.WINDOW, Purpose.ROUND, feistel.ROUNDS) == (3, 4, 8)
    assert f"table[{MOST_WINDOWS}]" in source
    assert f"window[{2 * found.most_tables}]" in found.sources["hashes"]
