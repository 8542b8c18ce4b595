"""The prefetcher: in order, within budgets, each group once, whoever runs it; also where threads meet in unlucky places."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
import torch

import gdsload
from gdsload.backends.host import HostBackend
from gdsload.engine.assemble import Assembler, BatchForm
from gdsload.engine.codecs import codecs_of
from gdsload.engine.landed import LandedSource
from gdsload.engine.limits import Limits, Runner
from gdsload.engine.prefetch import Prefetcher
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Job, Ordered
from gdsload.errors import LoaderClosedError, ReadError
from gdsload.order import OrderOptions, Schedule, make_order
from gdsload.shards.shard_table import ShardTable
from gdsload.system.memory import BatchPool
from gdsload.testing import Fault, FaultyBackend, RecordingBackend, SlowBackend
from tests.engine.noting import ALL, SAMPLES, Noting, drain, over


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("prefetcher") / "shards"
    with gdsload.ShardWriter(path, shard_bytes=4096) as writer:
        writer.write_batch({"x": np.repeat(np.arange(SAMPLES, dtype=np.int64)[:, None], 4, axis=1)})
    return gdsload.ShardDataset(path)


@pytest.fixture
def recorded():
    """Records what backends are asked for: what to put around them, and those that were made."""
    made = []

    def around(inner):
        made.append(RecordingBackend(inner))
        return made[-1]

    return around, made


@pytest.fixture
def make(dataset):
    """Makes prefetchers over what a backend reads, and closes them."""
    made = []

    def build(around=lambda inner: inner, *, limits=None, start=0, options=None, mapped=True, steps=None, threads=2):
        options = options or OrderOptions("sequential", 0, 0, 1)
        table = ShardTable.of(dataset.sources, dataset.stored, mapped=mapped)
        backend = around(HostBackend(table.files))
        order = make_order(options, dataset.counts.tolist(), 0, 0)
        steps = steps or Ordered(order, Schedule(SAMPLES, 5, lanes=options.lanes))
        job = Job(table, steps)
        stats = LoaderStats()
        source = LandedSource(
            job, backend, Assembler(BatchForm(codecs_of(dataset.stored, ("x",), "jagged")), BatchPool(1 << 20)), stats
        )
        limits = limits or Limits(1 << 20, 1 << 30, 1 << 12, 32 * 5, 0)
        found = Prefetcher(source, steps, limits=limits, start=start, stats=stats, runner=Runner(threads))
        made.append((found, backend))
        found.start()
        return found

    yield build
    for found, backend in made:
        found.close()
        backend.close()


@pytest.mark.parametrize("start", [0, 1, 57, 99, 100])
@pytest.mark.parametrize("prefetch_bytes", [1, 1000, 1 << 20])
def test_all_batches_come_in_order(make, start, prefetch_bytes):
    prefetcher = make(start=start, limits=Limits(prefetch_bytes, 1 << 30, 1 << 12, 160, 0))
    assert drain(prefetcher) == (ALL[start:], None)
    assert prefetcher.get() is None


def test_the_first_group_is_one_batch_so_that_it_is_there_soon(make):
    assert len(make().get().batches) == 1


def test_reading_ahead_stays_within_the_budget(make, recorded):
    """Nothing is asked for beyond it while the consumer holds still."""
    around, backends = recorded
    for budget in (1600, 16_000):
        prefetcher = make(around, limits=Limits(budget, 1 << 30, 1 << 30, 160, 0))
        ready = prefetcher.get()
        taken = len(ready.batches)
        time.sleep(0.1)
        planned = sum(extents.total_bytes for extents in backends[-1].brought) - 160 * taken
        # Two groups are always allowed; a group grows to half of the budget.
        assert planned <= max(budget, 2 * 160)
        assert drain(prefetcher)[0] == ALL[taken:]


class TestSlowPlanning:
    """The end of the epoch is where nothing is left to be planned and no group is there: both must be seen at once."""

    LIMITS = Limits(1, 1 << 30, 1, 160, 0)  # the consumer is at its heels: there is never more than one group

    @pytest.fixture(autouse=True)
    def slow_planning(self, monkeypatch):
        grow = Limits.group

        def slowly(self, *most, **how):
            time.sleep(0.002)
            return grow(self, *most, **how)

        monkeypatch.setattr(Limits, "group", slowly)

    def test_the_last_group_is_not_lost_between_being_planned_and_being_there(self, make):
        for _ in range(5):
            prefetcher = make(lambda inner: SlowBackend(inner, 0.001), limits=self.LIMITS, start=70)
            assert drain(prefetcher) == (ALL[70:], None)

    @pytest.mark.parametrize("when", ["read", "completion"])
    def test_an_error_is_not_lost_either(self, make, when):
        fault = Fault(lambda: ReadError("bad"), files=[2], when=when)
        found, error = drain(make(lambda inner: FaultyBackend(inner, fault), limits=self.LIMITS))
        assert str(error) == "bad"
        assert found == ALL[: len(found)]
        assert 0 < len(found) < 100


def third_group_fails(monkeypatch, error):
    """Has planning fail when the third group is planned; threads may end with that."""
    grow, asked = Limits.group, []

    def odd(self, *most, **how):
        asked.append(None)
        if len(asked) == 3:
            raise error
        return grow(self, *most, **how)

    monkeypatch.setattr(Limits, "group", odd)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)


@pytest.mark.parametrize(
    ("kind", "threads", "helps"),
    [
        (TypeError, 0, False),
        (TypeError, 1, True),
        (TypeError, 2, False),
        (SystemExit, 1, False),
        (SystemExit, 2, False),
    ],
)
def test_an_error_in_planning_ends_the_epoch(make, monkeypatch, kind, threads, helps):
    """After what was planned before it; nobody waits for a batch that nobody plans."""
    monkeypatch.setattr(Assembler, "takes_processor", helps)
    third_group_fails(monkeypatch, kind("a mistake"))
    prefetcher = make(threads=threads)
    found, error = drain(prefetcher)
    prefetcher.close()
    assert found == ALL[: len(found)]
    assert isinstance(error, TypeError if kind is TypeError else LoaderClosedError)


def test_nothing_is_planned_past_a_thread_that_was_torn_out_of_planning(make, monkeypatch):
    """The group that it had begun is lost: a batch after that one would be a wrong one."""

    class LateError(LoaderClosedError):
        def __init__(self, text):
            time.sleep(0.05)  # the other thread would have its turn now
            super().__init__(text)

    monkeypatch.setattr(Assembler, "takes_processor", False)  # or the consumer might be torn out itself
    third_group_fails(monkeypatch, SystemExit())
    monkeypatch.setattr("gdsload.engine.prefetch.LoaderClosedError", LateError)
    prefetcher = make(threads=2)
    found, error = drain(prefetcher)
    prefetcher.close()
    assert found == ALL[: len(found)]
    assert len(found) < 100
    assert isinstance(error, LateError)
    assert isinstance(error.__cause__, SystemExit)


def test_many_switches_between_threads(make):
    """Threads change places as often as the interpreter lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(10):
            assert drain(make(limits=Limits(500, 1 << 30, 400, 160, 0))) == (ALL, None)
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("mapped", [True, False])
def test_windows_are_given_back_after_their_last_sample(make, recorded, mapped):
    around, backends = recorded
    options = OrderOptions("block", 4, 20, 3)
    prefetcher = make(around, options=options, mapped=mapped, limits=Limits(1000, 4 * 20 * 32, 1 << 12, 160, 20 * 32))
    found, error = drain(prefetcher)
    assert error is None
    assert sorted(number for batch in found for number in batch) == list(range(SAMPLES))
    assert backends[0].held_bytes == 0
    assert backends[0].released_twice == 0


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_a_thread_that_is_torn_out_of_its_work_leaves_nobody_waiting(make, monkeypatch, kind):
    """Whatever ends it: its group is not waited for for ever."""
    torn = threading.Event()
    assemble = Assembler.assemble

    def tear(self, slices, sizes):
        if threading.current_thread().name.startswith("gdsload-") and not torn.is_set():
            torn.set()
            raise kind("torn")
        return assemble(self, slices, sizes)

    monkeypatch.setattr(Assembler, "assemble", tear)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    prefetcher = make(limits=Limits(1, 1 << 30, 1, 160, 0))
    found, error = drain(prefetcher)
    assert found == ALL[: len(found)]
    if kind is RuntimeError:
        assert str(error) == "torn", "what nobody expects is not tried again in silence"
    elif torn.is_set():
        assert isinstance(error, LoaderClosedError)
        assert type(error.__cause__) is kind
    prefetcher.close()


def test_close_while_a_consumer_waits(make):
    prefetcher = make(lambda inner: SlowBackend(inner, 0.3))
    errors = []

    def consume():
        try:
            drain(prefetcher)
        except LoaderClosedError as error:
            errors.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    time.sleep(0.05)
    began = time.monotonic()
    prefetcher.close()
    prefetcher.close()
    consumer.join(10)
    assert time.monotonic() - began < 5
    assert len(errors) == 1
    with pytest.raises(LoaderClosedError, match="closed"):
        prefetcher.get()


def test_stop_waits_for_nobody(make):
    before = set(threading.enumerate())
    prefetcher = make(lambda inner: SlowBackend(inner, 0.3))
    threads = set(threading.enumerate()) - before
    assert threads
    assert not prefetcher.stopped
    began = time.monotonic()
    prefetcher.stop()
    assert time.monotonic() - began < 0.2
    assert prefetcher.stopped
    prefetcher.close()
    assert not [thread for thread in threads if thread.is_alive()]


def test_a_pipeline_has_no_threads_before_it_is_started(make, monkeypatch):
    """Nobody could end them yet, if Ctrl-C struck."""
    before = set(threading.enumerate())
    monkeypatch.setattr(Prefetcher, "start", lambda self: None)
    prefetcher = make(lambda inner: SlowBackend(inner, 0.02))
    assert set(threading.enumerate()) == before
    monkeypatch.undo()
    prefetcher.start()
    threads = set(threading.enumerate()) - before
    assert threads
    prefetcher.start()
    assert set(threading.enumerate()) - before <= threads  # some may have ended
    assert drain(prefetcher)[0] == ALL


class Drawn:
    """Steps of a sampler: batches of any size, and an error in the place of the last."""

    def __init__(self, batches):
        self.batches, self.known = batches, 1

    @property
    def steps(self):
        return self.known

    def reach(self, step):
        self.known = max(self.known, min(step + 1, len(self.batches)))
        return max((len(batch) for batch in self.batches if not isinstance(batch, Exception)), default=0)

    def error(self, step):
        return self.batches[step] if isinstance(self.batches[step], Exception) else None

    def size(self, step):
        return len(self.batches[step])

    def positions(self, steps):
        return np.concatenate([np.array(self.batches[step], np.int64) for step in steps])


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("fails_at", [None, 0, 1, 7, 29])
def test_what_a_sampler_raises_comes_in_its_place(make, fails_at, threads):
    random = np.random.default_rng(5)
    batches = [random.integers(0, 200, count).tolist() for count in random.integers(0, 9, 30)]
    error = None if fails_at is None else ValueError("the sampler is empty")
    steps = Drawn([*batches[:fails_at], *([] if error is None else [error])])
    found, raised = drain(make(steps=steps, threads=threads))
    assert found == batches[:fails_at]
    assert raised is error


@pytest.fixture
def run(request):
    """Makes prefetchers over any source."""

    def build(source, runner, **more):
        found = over(source, runner, **more)
        request.addfinalizer(found.close)
        return found

    return build


@pytest.mark.timeout(20)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("step", [0, 1, 3, 8, 60])
def test_what_was_planned_before_a_thread_was_torn_out_of_planning_is_made(run, monkeypatch, step, threads):
    """Nobody else may be there to make it, and the consumer waits for it."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    source = Noting()
    source.failing[step] = SystemExit()
    prefetcher = run(source, Runner(threads))
    found, error = drain(prefetcher)
    prefetcher.close()
    assert found == [ALL[step] for steps in source.started for step in steps]
    assert len(found) <= step
    assert isinstance(error, LoaderClosedError)


BY_CONSUMER, ONE_GROUP = Runner(0, tapers=True), Runner(0, most_groups=1)
RUNNERS = pytest.mark.parametrize(
    "runner",
    [BY_CONSUMER, ONE_GROUP, Runner(0), Runner(1), Runner(3)],
    ids=["consumer", "one", "small", "1", "3"],
)


@RUNNERS
@pytest.mark.parametrize("start", [0, 1, 7, 99, 100])
def test_whoever_runs_it_batches_come_in_order_each_once(run, runner, start):
    source = Noting()
    prefetcher = run(source, runner, start=start)
    assert drain(prefetcher) == (ALL[start:], None)
    assert prefetcher.get() is None
    assert [step for steps in source.started for step in steps] == list(range(start, 100))


@RUNNERS
@pytest.mark.parametrize("batches", [1, 2, 5, 16, 1000])
def test_what_is_ahead_keeps_to_the_budget_but_for_two_groups(run, runner, batches):
    source = Noting()
    limits = Limits(batches * 160, 0, 8 * 160, 160, 0)
    drain(run(source, runner, prefetch_bytes=batches * 160, group_bytes=8 * 160))
    assert source.most_ahead <= max(batches, 2 * limits.group())


@RUNNERS
@pytest.mark.parametrize("step", [0, 1, 2, 6, 20, 99])
@pytest.mark.parametrize("when", ["failing", "lost"])
@pytest.mark.parametrize("kind", [ReadError("moved away"), torch.OutOfMemoryError("no room"), TypeError("a mistake")])
def test_an_error_comes_in_its_place_after_all_batches_before(run, caplog, runner, step, when, kind):
    source = Noting()
    getattr(source, when)[step] = kind
    assert drain(run(source, runner)) == (ALL[:step], kind)
    assert ("a mistake" in caplog.text) == isinstance(kind, TypeError), "one that nobody expects is logged"


@RUNNERS
@pytest.mark.parametrize("when", ["failing", "lost"])
def test_what_files_and_devices_cause_may_go_well_the_second_time_and_nothing_else(run, caplog, runner, when):
    source = Noting()
    source.healed, getattr(source, when)[20] = True, ReadError("for a moment")
    assert drain(run(source, runner)) == (ALL, None)
    assert "for a moment" in caplog.text
    source = Noting()
    source.healed, getattr(source, when)[20] = True, TypeError("a mistake")
    found, error = drain(run(source, runner))
    assert isinstance(error, TypeError)
    assert found == ALL[: len(found)]
    assert len(found) <= 20


@RUNNERS
def test_batches_that_are_made_in_inference_mode_can_be_trained_on(run, runner):
    prefetcher = run(Noting(), runner)
    with torch.inference_mode():
        ready = prefetcher.get()
    assert not ready.batches[0]["x"].is_inference()


@RUNNERS
def test_what_was_started_and_nobody_takes_is_dropped(run, runner):
    source = Noting()
    prefetcher = run(source, runner)
    taken = len(prefetcher.get().batches)
    prefetcher.close()
    left = [step for steps in source.started for step in steps if step >= taken]
    assert sorted(step for steps in [*source.dropped, *source.made] for step in steps if step >= taken) == left
    assert source.closed == 1


def test_close_waits_for_what_the_consumer_starts(run):
    source, inside, go_on, order = Noting(), threading.Event(), threading.Event(), []
    source.inside = lambda: (inside.set(), go_on.wait(20), order.append("started"))
    prefetcher = run(source, BY_CONSUMER)

    def get():
        with pytest.raises(LoaderClosedError):
            prefetcher.get()
        order.append("ended")

    getting = threading.Thread(target=get)
    getting.start()
    assert inside.wait(20)
    closing = threading.Thread(target=lambda: (prefetcher.close(), order.append("closed")))
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    go_on.set()
    closing.join(20)
    getting.join(20)
    assert order.index("started") < order.index("closed")
    assert "ended" in order
    with pytest.raises(LoaderClosedError):
        prefetcher.get()


def test_a_handler_that_closes_while_a_group_is_started_ends_that(run):
    """Or it would be made after the handler, out of files that are no longer there."""
    source = Noting()
    prefetcher = run(source, BY_CONSUMER)
    source.inside = prefetcher.close
    with pytest.raises(LoaderClosedError):
        prefetcher.get()
    source.inside = lambda: None
    prefetcher.close()
    with pytest.raises(LoaderClosedError):
        prefetcher.get()
    assert not source.started
    assert source.closed


@RUNNERS
def test_stop_and_close_after_a_fork_wait_for_nobody(run, runner, ends_in_a_child):
    """Another thread was inside, and is not in the child to come out again."""
    source, inside, go_on = Noting(), threading.Event(), threading.Event()
    source.inside = lambda: (inside.set(), go_on.wait(20))
    prefetcher = run(source, runner)
    getting = threading.Thread(target=lambda: suppressed(prefetcher.get))
    getting.start()
    assert inside.wait(20)
    try:
        assert ends_in_a_child(prefetcher.close)
        prefetcher.stop()
        assert prefetcher.stopped
    finally:
        go_on.set()
        getting.join(20)


def suppressed(call):
    with suppress(LoaderClosedError):
        call()


def test_a_group_that_is_there_does_not_wait_for_a_slow_sampler(make, monkeypatch):
    """What it gives next is needed for groups that come later."""
    monkeypatch.setattr(Assembler, "takes_processor", False)  # a consumer that helps may be the one who draws
    taken, held = threading.Event(), []

    class Slow(Drawn):
        def reach(self, step):
            if step >= 4:  # one batch is known beyond what is planned, and one is planned
                held.append(not taken.wait(5))
            return super().reach(step)

    batches = [[1], [2], [3], [4]]
    prefetcher = make(steps=Slow(batches), limits=Limits(1 << 20, 1 << 30, 1, 32, 0))
    found = []
    while len(found) < 2:
        found += [batch["x"][:, 0].tolist() for batch in prefetcher.get().batches]
    taken.set()
    assert found + drain(prefetcher)[0] == batches
    assert held
    assert not any(held), "what was there was handed out later than what it does not need"


@pytest.mark.parametrize("seed", range(5))
def test_windows_that_are_held_while_others_make_some_batches(make, recorded, dataset, seed):
    """They were handed out up to a step that is long past: what is wanted next of them lies somewhere else."""
    (around, backends), random = recorded, np.random.default_rng(seed)
    options = OrderOptions("block", 4, 50, 3)
    order = make_order(options, dataset.counts.tolist(), 0, 0)
    steps = Ordered(order, Schedule(SAMPLES, 5, lanes=3))
    expected = [steps.positions(range(step, step + 1)).tolist() for step in range(steps.steps)]
    prefetcher = make(around, options=options, mapped=False, limits=Limits(640, 6 * 50 * 32, 320, 160, 50 * 32))
    landed, start = prefetcher.source, prefetcher.source.start

    def sometimes(wanted):
        if random.integers(2):
            return start(wanted)
        landed.close()
        return Noting(expected).start(wanted)

    prefetcher.source.start = sometimes
    assert drain(prefetcher) == (expected, None)
    prefetcher.close()
    assert backends[0].brought
    assert backends[0].held_bytes == 0
    assert backends[0].released_twice == 0
