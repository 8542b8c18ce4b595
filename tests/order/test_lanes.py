from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsload.errors import OptionError
from gdsload.order import LaneRun, Schedule, lane_offset, lane_share
from gdsload.order.checks import MAX_SAMPLES
from tests.order.made import schedules

LANES = st.integers(1, 12)
SCHEDULES = st.tuples(st.integers(0, 500), LANES).flatmap(lambda given: schedules(*given, batches=40))


def ranks(schedule):
    return [replace(schedule, rank=rank) for rank in range(schedule.world_size)]


def positions(runs):
    return [(run.lane, position) for run in runs for position in range(run.start, run.stop)]


@given(st.integers(0, MAX_SAMPLES), LANES)
def test_lanes_are_equal_ranges_of_all_positions(samples, lanes):
    lengths = [lane_share(samples, lane, lanes) for lane in range(lanes)]
    assert sum(lengths) == samples
    assert max(lengths) - min(lengths) <= 1
    assert [lane_offset(samples, lane, lanes) for lane in range(lanes)] == [
        sum(lengths[:lane]) for lane in range(lanes)
    ]


@given(SCHEDULES)
def test_an_epoch_takes_each_lane_in_order_and_whole(schedule):
    next_position = [0] * schedule.lanes
    for step in range(schedule.steps):
        for rank in ranks(schedule):
            for run in rank.runs(step):
                if run.lane >= schedule.lanes:  # repeated
                    continue
                if step < schedule.samples // schedule.global_batch:
                    assert run.start == next_position[run.lane]
                assert run.start <= next_position[run.lane]
                assert len(run) > 0
                next_position[run.lane] = max(run.stop, next_position[run.lane])
    given_samples = schedule.position(schedule.steps)
    assert next_position == [lane_share(given_samples, lane, schedule.lanes) for lane in range(schedule.lanes)]
    left = schedule.samples - given_samples
    assert left < schedule.global_batch if schedule.tail == "drop" else left == 0


@given(SCHEDULES, st.data())
def test_what_a_rank_gets_of_a_part_of_a_lane(schedule, data):
    lane, step = data.draw(st.integers(0, 2 * schedule.lanes - 1)), data.draw(st.integers(0, schedule.steps))
    own = lane % schedule.lanes
    first = lane_share(schedule.position(step), own, schedule.lanes) if lane == own else 0
    start = data.draw(st.integers(first, max(first, lane_share(schedule.samples, own, schedule.lanes))))
    stop = data.draw(st.integers(start, start + 100))
    every = [place for later in range(step, schedule.steps) for place in positions(schedule.runs(later))]
    expected = [(number, position) for number, position in every if number == lane and start <= position < stop]
    assert positions(schedule.runs_within(lane, step, start, stop)) == expected


@given(SCHEDULES)
def test_ranks_share_out_the_global_batch(schedule):
    alone = Schedule(schedule.samples, schedule.global_batch, tail=schedule.tail, lanes=schedule.lanes)
    assert alone.steps == schedule.steps
    for step in range(schedule.steps):
        slices = [positions(rank.runs(step)) for rank in ranks(schedule)]
        sizes = [rank.size(step) for rank in ranks(schedule)]
        assert sizes == [len(found) for found in slices]
        whole = positions(alone.runs(step))
        assert len(set(sizes)) == 1  # what ranks gather from each other has one shape
        assert sizes[0] == -(-len(whole) // schedule.world_size) > 0  # and none has a batch of none
        together = [place for found in slices for place in found]
        if len(whole) == schedule.global_batch:
            assert together == whole
        assert sorted(set(together)) == sorted(whole)
        assert len(together) - len(whole) < schedule.world_size  # as few come twice as torch's DistributedSampler adds


@given(SCHEDULES)
def test_several_steps_at_once_are_those_of_each(schedule):
    for rank in ranks(schedule):
        for start, stop in ((0, rank.steps), (0, 0), (rank.steps // 2, rank.steps), (0, rank.steps // 2 + 1)):
            steps = range(min(start, rank.steps), min(stop, rank.steps))
            runs = {step: rank.runs(step) for step in steps}
            one_by_one = [place for step in steps for place in positions(runs[step])]
            assert positions(rank.runs_of(steps)) == one_by_one
            assert rank.sizes(steps) == [rank.size(step) for step in steps]
            expected = [(run.lane, step, run.start, run.stop) for step in steps for run in runs[step]]
            assert list(zip(*rank.pieces(steps).tolist(), strict=True)) == expected
            if (whole := rank.ranges(steps)) is None:
                assert rank.world_size > 1 or rank.padding or not steps
            else:
                assert positions(whole) == sorted(one_by_one)


@given(SCHEDULES)
def test_each_global_batch_takes_its_share_of_every_lane(schedule):
    alone = Schedule(schedule.samples, schedule.global_batch, lanes=schedule.lanes)
    for step in range(alone.steps):
        runs = alone.runs(step)
        assert [run.lane for run in runs] == sorted({run.lane for run in runs})
        taken = dict.fromkeys(range(alone.lanes), 0) | {run.lane: len(run) for run in runs}
        assert max(taken.values()) - min(taken.values()) <= 1


@given(SCHEDULES)
def test_what_fills_up_the_last_batch_is_what_the_epoch_began_with(schedule):
    schedule = replace(schedule, tail="pad")
    assert len({rank.steps for rank in ranks(schedule)}) == 1
    alone = Schedule(schedule.samples, schedule.samples or 1, lanes=schedule.lanes)
    seen, whole = [], sorted(positions(alone.runs(0))) if schedule.samples else []
    for step in range(schedule.steps):
        for rank in ranks(schedule):
            assert rank.size(step) == schedule.batch_size == len(positions(rank.runs(step)))
            seen += positions(rank.runs(step))
    real, repeated = seen[: schedule.samples], seen[schedule.samples :]
    assert sorted(real) == whole
    assert len(repeated) == schedule.padding < schedule.global_batch
    turns = [(lane % schedule.lanes, position) for lane, position in repeated]
    for turn, start in enumerate(range(0, len(turns), schedule.samples or 1), 1):
        part = repeated[start : start + schedule.samples]
        assert {lane // schedule.lanes for lane, _ in part} == {turn}
        first = positions(Schedule(schedule.samples, len(part), lanes=schedule.lanes).runs(0))
        assert turns[start : start + schedule.samples] == first


@given(SCHEDULES)
def test_each_sample_counts_once(schedule):
    for step in range(schedule.steps):
        counted, before = [], schedule.position(step)
        for rank in ranks(schedule):
            found = positions(rank.runs(step))
            places = rank.counted(step, len(found))
            assert len(places) == len(found) or step == schedule.steps - 1
            counted += [found[place] for place in places]
        alone = Schedule(schedule.samples, schedule.global_batch, lanes=schedule.lanes)
        assert sorted(counted) == sorted(positions(alone.runs(step)))
        assert len(counted) == min(schedule.global_batch, schedule.samples - before)
        if step == schedule.steps - 1:
            assert schedule.remainder in (0, len(counted))


def test_a_slice_meets_few_lanes():
    for rank in range(4):
        assert len(Schedule(10_000, 64, rank, 4, lanes=8).runs(3)) == 2


def test_a_worked_example():
    # 22 samples in 3 lanes of 7, 7 and 8; global batches of 2 x 4 = 8, 8 and 6.
    schedule = Schedule(22, 4, rank=1, world_size=2, lanes=3)
    assert schedule.steps == 3
    assert schedule.runs(0) == [LaneRun(1, 2, 3), LaneRun(2, 0, 3)]
    assert schedule.runs(1) == [LaneRun(1, 4, 5), LaneRun(2, 3, 6)]
    assert schedule.runs(2) == [LaneRun(1, 6, 7), LaneRun(2, 6, 8)]
    assert [schedule.size(step) for step in range(3)] == [4, 4, 3]
    assert schedule.position(2) == 16
    assert schedule.step_at(16) == 2


@given(SCHEDULES)
def test_step_at_inverts_position(schedule):
    edges = [schedule.position(step) for step in range(schedule.steps + 1)]
    for position in range(-1, schedule.samples + 2):
        if position in edges:
            assert schedule.step_at(position) == edges.index(position)
        else:
            with pytest.raises(OptionError, match="`batch_size` x `world_size`"):
                schedule.step_at(position)


def test_a_partial_batch_overlaps_where_it_does_not_go_round():
    spans = {samples: [Schedule(samples, 2, rank, 4).span(1) for rank in range(4)] for samples in (9, 10, 13)}
    assert spans == {9: [(8, 9)] * 4, 10: [(8, 9), (8, 9), (8, 9), (9, 10)], 13: [(8, 10), (9, 11), (10, 12), (11, 13)]}
