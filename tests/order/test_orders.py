import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.order import (
    FullOrder,
    LaneRun,
    OrderOptions,
    Permutation,
    Schedule,
    lane_offset,
    make_order,
)
from gdsload.order import blocks as blocks_module
from tests.order.made import block_order, block_orders
from tests.order.quality import batch_ids

RUN_LENGTHS = st.lists(st.integers(0, 80), max_size=6)


@st.composite
def options(draw):
    shuffle = draw(st.sampled_from(["sequential", "full", "block"]))
    if shuffle != "block":
        return OrderOptions(shuffle, 0, 0, 1)
    return OrderOptions(shuffle, draw(st.integers(1, 30)), draw(st.integers(1, 90)), draw(st.integers(1, 6)))


def lane(order, number):
    return order.lane_ids(number, 0, order.lane_length(number))


def all_ids(order):
    return np.concatenate([lane(order, number) for number in range(order.lanes)])


def epoch_ids(order, **schedule):
    """The samples of each step, ranks one after the other."""
    world_size = schedule.get("world_size", 1)
    ranks = [Schedule(order.samples, lanes=order.lanes, **schedule, rank=rank) for rank in range(world_size)]
    return [np.concatenate([batch_ids(order, rank, step) for rank in ranks]) for step in range(ranks[0].steps)]


def windows(order, number):
    """Positions of each window of a lane."""
    found, stop = [], 0
    while stop < order.lane_length(number):
        start, stop = order.window_at(number, stop)
        found.append((start, stop))
    return found


def window_extents(order, number, start, stop):
    """First id and length of each run of consecutive ids that make up a window."""
    base = lane_offset(order.samples, number, order.lanes)
    return order.sequence().extents(base + start, base + stop)


@settings(max_examples=150)
@given(options(), RUN_LENGTHS, st.integers(0, 2**64 - 1), st.integers(1, 4), st.integers(1, 20))
def test_every_epoch_delivers_every_sample_once(option, run_lengths, seed, world_size, batch_size):
    order = make_order(option, run_lengths, seed, epoch=3)
    assert order.samples == sum(run_lengths)
    assert np.array_equal(np.sort(all_ids(order)), np.arange(order.samples))
    delivered = epoch_ids(order, batch_size=batch_size, world_size=world_size)
    flat = np.concatenate([np.empty(0, dtype=np.int64), *delivered])
    assert np.array_equal(np.unique(flat), np.arange(order.samples))
    assert len(flat) - order.samples < world_size
    kept = epoch_ids(order, batch_size=batch_size, world_size=world_size, tail="drop")
    assert all(np.array_equal(ids, whole) for ids, whole in zip(kept, delivered, strict=False))
    assert {ids.size for ids in kept} <= {batch_size * world_size}


@settings(max_examples=60)
@given(options(), RUN_LENGTHS, st.sampled_from([(1, 12), (2, 6), (3, 4), (12, 1)]), st.data())
def test_a_run_resumed_on_another_world_size_loses_nothing_and_repeats_no_more_than_another(
    option, run_lengths, cut, data
):
    order = make_order(option, run_lengths, seed=5, epoch=0)
    world_size, batch_size = cut
    before = epoch_ids(order, batch_size=4, world_size=3)
    after = epoch_ids(order, batch_size=batch_size, world_size=world_size)
    saved = Schedule(order.samples, 4, world_size=3, lanes=order.lanes)
    resumed = Schedule(order.samples, batch_size, world_size=world_size, lanes=order.lanes)
    for step in range(saved.steps + 1):
        position = saved.position(step)
        delivered = [*before[:step], *after[resumed.step_at(position) :]]
        flat = np.concatenate([np.empty(0, dtype=np.int64), *delivered])
        assert np.array_equal(np.unique(flat), np.arange(order.samples))
        assert len(flat) - order.samples < max(world_size, 3)  # in the last step, where samples do not go round


@settings(max_examples=100)
@given(options(), RUN_LENGTHS, st.data())
def test_a_lane_is_the_same_however_it_is_cut(option, run_lengths, data):
    order = make_order(option, run_lengths, 1, 2)
    for number in range(order.lanes):
        length = order.lane_length(number)
        cuts = sorted(data.draw(st.lists(st.integers(0, length), max_size=5)))
        fresh = make_order(option, run_lengths, 1, 2)
        parts = [fresh.lane_ids(number, a, b) for a, b in itertools.pairwise([0, *cuts, length])]
        assert np.array_equal(np.concatenate(parts), lane(order, number))
        assert all(part.dtype == np.int64 and not part.flags.writeable for part in parts)


@settings(max_examples=150)
@given(RUN_LENGTHS, st.integers(1, 30), st.integers(1, 90), st.integers(1, 6), st.integers(0, 9))
def test_windows_hold_exactly_their_extents(run_lengths, block, window, lanes, key):
    order = block_order(run_lengths, block, window, lanes, key)
    edges = np.cumsum([0, *run_lengths])
    for number in range(lanes):
        end = 0
        for start, stop in windows(order, number):
            starts, lengths = window_extents(order, number, start, stop)
            ids = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)])
            assert start == end
            assert order.window_at(number, stop - 1) == (start, stop)
            assert stop - start <= window
            assert np.array_equal(np.sort(ids), np.sort(order.lane_ids(number, start, stop)))
            end = stop
            assert lengths.min() > 0
            assert lengths.max() <= block
            runs = np.searchsorted(edges, starts, side="right")
            assert np.array_equal(runs, np.searchsorted(edges, starts + lengths - 1, side="right"))


def test_lanes_change_windows_by_turns():
    order = block_order(run_lengths=[8000], block=50, window=160, lanes=8, key=1)
    changes = [order.window_at(number, 0)[1] for number in range(8)]
    assert changes == [20, 40, 60, 80, 100, 120, 140, 160]
    assert [order.window_at(number, 500) for number in range(2)] == [(500, 660), (360, 520)]


def test_a_lane_of_one_window_is_not_cut():
    order = block_order(run_lengths=[800], block=50, window=100, lanes=8, key=1)
    assert [order.window_at(number, 99) for number in range(8)] == [(0, 100)] * 8


@settings(derandomize=True)
@given(block_orders(RUN_LENGTHS.filter(any)), st.data())
def test_ids_of_a_window_in_rising_order(order, data):
    """All of them, as runs too, or those at some of its positions; they are the same ids as one by one."""
    filled = [number for number in range(order.lanes) if order.lane_length(number)]
    number = data.draw(st.sampled_from(filled))
    start, stop = order.window_at(number, data.draw(st.integers(0, order.lane_length(number) - 1)))
    cuts = sorted(data.draw(st.sets(st.integers(start, stop), min_size=2, max_size=6) if stop - start > 1 else
                            st.just({start, stop})))  # fmt: skip
    runs = [LaneRun(number, low, high) for low, high in itertools.pairwise(cuts)][:: data.draw(st.integers(1, 2))]
    ids, places = order.sorted_ids(number, runs)
    assert (np.diff(ids) > 0).all()
    assert ids[places].tolist() == [
        each for run in runs for each in order.lane_ids(number, run.start, run.stop).tolist()
    ]
    found = np.concatenate([np.arange(first, last) for first, last in order.runs_between(number, start, stop).tolist()])
    assert found.tolist() == sorted(order.lane_ids(number, start, stop).tolist())


def test_windows_larger_than_an_exact_shuffle():
    order = block_order(run_lengths=[200_000, 150_001], block=1000, window=90_000, lanes=2, key=1)
    assert np.array_equal(np.sort(all_ids(order)), np.arange(350_001))
    whole = lane(order, 1)
    fresh = block_order(run_lengths=[200_000, 150_001], block=1000, window=90_000, lanes=2, key=1)
    assert np.array_equal(fresh.lane_ids(1, 65_530, 65_550), whole[65_530:65_550])
    assert np.array_equal(fresh.lane_ids(1, 89_990, 90_010), whole[89_990:90_010])


@pytest.mark.parametrize(("window", "lanes"), [(250, 4), (70_000, 2), (150_000, 1), (1, 3)])
def test_ids_do_not_depend_on_how_blocks_are_looked_up(monkeypatch, window, lanes):
    samples = 150_000 if window > 1 else 500
    ids = []
    for spread in (0, 10**9):
        monkeypatch.setattr(blocks_module, "_SPREAD", spread)
        ids.append(all_ids(block_order((samples, 0, 37), block=1000, window=window, lanes=lanes)))
    assert np.array_equal(*ids)
    assert np.array_equal(np.sort(ids[0]), np.arange(samples + 37))


def test_no_piece_is_made_twice_in_an_epoch(monkeypatch):
    order = block_order(run_lengths=[8000], block=50, window=100, lanes=8)
    order.sequence()
    made = []
    monkeypatch.setattr(blocks_module, "Permutation", lambda n, key: (made.append((n, key)), Permutation(n, key))[1])
    epoch_ids(order, batch_size=64)
    assert len(made) == len(set(made)) == sum(len(windows(order, number)) for number in range(8))


@pytest.mark.parametrize("shuffle", ["full", "block"])
def test_seeds_and_epochs_differ(shuffle):
    option = OrderOptions(shuffle, *((10, 60, 2) if shuffle == "block" else (0, 0, 1)))
    pairs = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (3, 0), (0, 2**64 - 1), (2**64 - 1, 0)]
    orders = [all_ids(make_order(option, [600], *pair)).tolist() for pair in pairs]
    again = [all_ids(make_order(option, [600], *pair)).tolist() for pair in pairs]
    assert orders == again
    for first, second in itertools.combinations(orders, 2):
        assert np.mean(np.equal(first, second)) < 0.05


def test_windows_of_one_epoch_are_shuffled_differently():
    order = block_order(run_lengths=[400], block=400, window=100, lanes=2)
    shuffles = [(order.lane_ids(number, start, start + 100) % 100).tolist() for number in (0, 1) for start in (0, 100)]
    for first, second in itertools.combinations(shuffles, 2):
        assert np.mean(np.equal(first, second)) < 0.1


@pytest.mark.parametrize("order", [FullOrder(300_000, 3), block_order([300_000], 700, 9000, 4)])
def test_threads_may_share_one(order):
    whole = [lane(order, number) for number in range(order.lanes)]
    rng = np.random.default_rng(0)
    requests = [(number, int(rng.integers(0, 70_000))) for number in rng.integers(0, order.lanes, 300).tolist()]
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda request: order.lane_ids(*request, request[1] + 500), requests))
    for (number, start), part in zip(requests, parts, strict=True):
        assert np.array_equal(part, whole[number][start : start + 500])


def test_golden_orders():
    full = make_order(OrderOptions("full", 0, 0, 1), [100], 42, 1)
    assert full.lane_ids(0, 0, 8).tolist() == [32, 30, 44, 79, 90, 0, 76, 83]
    block = make_order(OrderOptions("block", 10, 30, 2), [55, 45], 42, 1)
    assert block.lane_ids(0, 0, 8).tolist() == [3, 7, 50, 9, 52, 5, 2, 54]
    assert block.lane_ids(1, 28, 36).tolist() == [17, 21, 34, 79, 39, 76, 37, 84]
    starts, lengths = window_extents(block, 1, *block.window_at(1, 0))
    assert (starts.tolist(), lengths.tolist()) == ([10, 20, 40], [10, 10, 10])
