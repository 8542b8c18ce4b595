"""Turns of rows whose rate is known, and rows of the record that are made of turns."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.tools.bench import bench_plan, cache_state, make_plan, turns
from gdsload.tools.bench.bench_plan import LEAST_BATCHES
from gdsload.tools.bench.by_hand import StoredRows
from gdsload.tools.bench.measure import rounds
from gdsload.tools.bench.rows import LoaderRow, Row
from gdsload.tools.bench.summary import noise_of, summary
from gdsload.tools.bench.turns import Usage, late_samples, run_turn

BATCH = {"x": torch.zeros(1000, 10, dtype=torch.uint8)}
PACE_S = 0.01


def test_bytes_from_the_drive_are_counted(planned, drops):
    plan, read = planned(), []
    for _ in range(2):
        before = Usage.now().drive_bytes
        cache_state.fill(plan.files)
        read.append(Usage.now().drive_bytes - before)
    assert read[0] >= plan.dataset.num_bytes
    assert read[1] == 0


class Clock:
    """A clock that only rows advance. The drive has been read at a multiple of the rate at which batches come."""

    def __init__(self):
        self.now, self.factor = 100.0, 1.0

    def __call__(self):
        return self.now

    def used(self):
        return Usage(self.now, int(self.factor * self.now / PACE_S * 10_000))


@pytest.fixture(scope="module")
def clock():
    with pytest.MonkeyPatch.context() as patch:
        found = Clock()
        patch.setattr(turns, "time", SimpleNamespace(perf_counter=found, monotonic=found))
        patch.setattr(Usage, "now", found.used)
        yield found


class Paced(Row):
    """Batches that come in groups, 10 ms a batch on average, once the first have come late and `ahead` ones at once."""

    kind = "read"

    def __init__(self, plan, clock, batches=100_000, late=0, ahead=0, group=1):
        super().__init__(plan, "paced", "")
        self._batches, self._late, self.ahead, self._group, self._clock = batches, late, ahead, group, clock

    def epoch(self, number):
        for batch in range(self._batches):
            if batch >= self.ahead and batch % self._group == 0:
                self._clock.now += PACE_S * self._group + (0.1 if batch < self.ahead + self._late else 0)
            yield BATCH


def pace_of(row, plan, prepare=None):
    """1 at the row's own pace."""
    turn, between = run_turn(row, plan, 0, prepare)
    assert len(between) == turn["batches"]
    assert turn["samples"] == turn["batches"] * 1000
    assert turn["bytes"] == turn["samples"] * 10
    return turn["gb_per_s"] * 1e9 / 10_000 * PACE_S


@pytest.fixture(scope="module")
def plans(bench_data):
    return {s: make_plan(bench_data, device="cpu", seconds=s, turns=1, batch_size=1) for s in (1, 2, 20)}


@settings(max_examples=20)
@given(
    late=st.integers(0, 2), ahead=st.integers(0, 60), group=st.integers(1, 20), epochs=st.sampled_from(["hot", "cold", "short"]),
)  # fmt: skip
def test_short_turns_and_long_ones_agree(plans, clock, late, ahead, group, epochs):
    """Short epochs are cold: hot ones follow one another, so a long turn has beginnings that a short one has not."""
    row = (clock, 1000 if epochs == "short" else 100_000, late, ahead, group)
    prepare = None if epochs == "hot" else lambda epoch: lambda: False
    short, long = (pace_of(Paced(plans[seconds], *row), plans[seconds], prepare) for seconds in (2, 20))
    assert short == pytest.approx(long, rel=0.04)
    assert long == pytest.approx(1, rel=0.04)


def test_without_a_ramp_they_would_not(plans, clock, monkeypatch):
    """The negative control."""
    monkeypatch.setattr(turns.Ramp, "over", lambda self, nbytes: True)
    assert pace_of(Paced(plans[1], clock, late=4), plans[1]) < 0.8
    assert pace_of(Paced(plans[1], clock, ahead=200), plans[1]) > 1.2


@pytest.mark.parametrize("batches", [1, 2, 5, 30])
def test_epochs_that_are_shorter_than_a_ramp_are_repeated(plans, clock, batches):
    prepared = []

    def prepare(epoch):
        prepared.append(epoch)
        return lambda: False

    assert pace_of(Paced(plans[1], clock, batches), plans[1], prepare) == pytest.approx(1)
    assert len(set(prepared)) == len(prepared) >= 1 / (batches * PACE_S)


@pytest.mark.parametrize("group", [1, 7])
def test_the_end_of_an_epoch_that_was_read_before_is_no_part_of_a_cold_rate(plans, clock, group):
    class Drained(Paced):
        """The last fifth of its epochs of 700 batches is there at once."""

        def epoch(self, number):
            yield from itertools.islice(super().epoch(number), 560)
            yield from itertools.repeat(BATCH, 140)

    cold = pace_of(Drained(plans[20], clock, group=group), plans[20], lambda epoch: lambda: False)
    assert cold == pytest.approx(1, rel=0.01)
    assert pace_of(Drained(plans[20], clock, group=group), plans[20]) > 1.15  # the negative control


def test_a_part_ends_where_the_page_cache_is_warm(plans, clock, monkeypatch):
    for warm, parts in (False, 1), (True, 4):
        turn, _ = run_turn(Paced(plans[1], clock), plans[1], 0, lambda epoch, warm=warm: lambda: warm)
        assert turn["parts"] == parts
        assert turn["drive_bytes"] == pytest.approx(turn["bytes"], rel=0.02)


def test_a_plan_comes_true_where_preparing_takes_longer_than_measuring(bench_data, clock):
    """A GPU, and a drive that gives 100 batches a second."""

    def prepare(epoch):
        clock.now += 0.75
        return lambda: False

    plan = make_plan(bench_data, device="cpu", batch_size=1)
    on_gpu = replace(plan, device=torch.device("cuda"), backends=("auto", "gds", "bounce", "mapped"))
    plan = replace(bench_plan._timed(on_gpu), device=torch.device("cpu"))
    whole_s = 0.0
    for rows, before in (((3, 3), prepare), ((4, 2), None)):
        some = [LoaderRow(plan, "host")] * rows[0] + [Row(plan, "", "")] * rows[1]
        begun = clock.now
        turn, _ = run_turn(Paced(plan, clock), plan if before else plan.of_hot_turns(), 0, before)
        whole_s += (clock.now - begun) * sum(map(len, rounds(some, plan.turns)))
        assert turn["batches"] >= (2 * LEAST_BATCHES if before else 15)
    assert 0.5 * plan.budget_s < whole_s < 0.66 * plan.budget_s


def test_what_comes_late_in_an_epoch_is_looked_at(planned, drops):
    plan = planned(shuffle="full", batch_size=5)
    rows = StoredRows(plan.path)
    warm = late_samples(plan, rows, 3)
    assert cache_state.drop(plan.files).cold  # headers and offsets were read
    assert not warm()
    last = np.concatenate(list(plan.ids(3, range(105, 140))))
    rows.batch(last)
    assert warm()
    rows.close()


def turn(**more):
    return {
        "gb_per_s": 2.0, "seconds": 1.0, "batches": LEAST_BATCHES, "samples": 10, "bytes": 2 * 10**9, "cpu_s": 4.0,
        "drive_bytes": 2 * 10**9, "bytes_by_path": {"host": 7},
    } | more  # fmt: skip


@pytest.mark.parametrize(
    ("more", "limit", "share", "warning"),
    [
        ({}, ("drive", 4.0), 0.5, ""),
        ({}, ("drive", 1.9), None, "faster than the measured limit, 1.9 GB/s of the drive"),
        ({}, None, None, ""),
        ({"drive_bytes": 10**9}, ("drive", 4.0), None, "50% came from the page cache"),
        ({"drive_bytes": None}, ("drive", 4.0), 0.5, ""),
        ({"drive_bytes": 0}, ("drive", 4.0), 0.5, ""),  # cold, so that they came from where nobody counts
        ({"batches": 19}, ("link", 4.0), 0.5, "too short: a turn had 19 batches, and 20 are needed"),
        ({"batches": 1}, ("link", 4.0), 0.5, "too short: a turn had 1 batch, and 20 are needed"),
    ],
)
def test_no_row_is_above_its_limit(planned, more, limit, share, warning):
    found = summary(Row(planned(), "read", ""), [(turn(**more), [0.1]), (turn(**more), [0.3])], limit, cold=True)
    assert found["share_of_limit"] == share
    assert warning in found["warning"]
    assert bool(warning) == bool(found["warning"])
    assert found["cpu_s_per_gb"] == 2.0


def test_the_noise_is_that_of_the_control():
    rows = [{"kind": kind, "gb_per_s": {"median": rate}} for kind, rate in (("gdsload", 2.0), ("control", 1.9))]
    assert noise_of(rows) == pytest.approx(0.05)
    assert noise_of(rows[:1]) is None
    assert noise_of([]) is None
