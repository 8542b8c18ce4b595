"""The pipeline: in order, within budgets, each group once; also where threads meet in unlucky places."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import gdsload
from gdsload.backends.host import HostBackend
from gdsload.engine import pipeline as pipeline_module
from gdsload.engine.assemble import Assembler, BatchForm
from gdsload.engine.groups import Limits
from gdsload.engine.pipeline import Pipeline
from gdsload.engine.ready import Ready
from gdsload.engine.stage import Job, Ordered, Selection
from gdsload.engine.stats import LoaderStats
from gdsload.errors import LoaderClosedError, ReadError
from gdsload.order import OrderOptions, Schedule, make_order
from gdsload.shards.files import Files
from gdsload.shards.shard_table import ShardTable
from gdsload.system.memory import BatchPool
from gdsload.testing import Fault, FaultyBackend, RecordingBackend, SlowBackend

SAMPLES = 500


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("pipeline") / "shards"
    with gdsload.ShardWriter(path, shard_bytes=4096) as writer:
        writer.write_batch({"x": np.repeat(np.arange(SAMPLES, dtype=np.int64)[:, None], 4, axis=1)})
    return gdsload.ShardDataset(path)


@pytest.fixture
def make(dataset):
    """Makes pipelines and closes them: make(around, limits=..., start=..., options=...)."""
    made = []

    def build(
        around=lambda inner: inner,
        *,
        limits=None,
        start=0,
        options=None,
        mapped=True,
        direct=None,
        steps=None,
    ):
        options = options or OrderOptions("sequential", 0, 0, 1)
        files = Files(dataset.sources, mapped=mapped)
        backend = around(HostBackend(files))
        order = make_order(options, dataset.counts.tolist(), 0, 0)
        steps = steps or Ordered(order, Schedule(SAMPLES, 5, lanes=options.lanes))
        job = Job(ShardTable(files, dataset.schema), steps, Selection(), ("x",))
        assembler = Assembler(dataset.schema, BatchPool(1 << 20), BatchForm())
        limits = limits or Limits(1 << 20, 1 << 30, 1 << 12, 32 * 5, 0)
        pipeline = Pipeline(job, backend, assembler, limits=limits, start=start, stats=LoaderStats(), direct=direct)
        made.append((pipeline, backend))
        pipeline.start()
        return pipeline

    yield build
    for pipeline, backend in made:
        pipeline.close()
        backend.close()


def drain(pipeline):
    """All batches, as the numbers of their samples, and the error behind them."""
    found = []
    while (ready := pipeline.get()) is not None:
        assert len(ready.batches) == len(ready.sizes)
        found += [batch["x"][:, 0].tolist() for batch in ready.batches]
        if ready.error is not None:
            return found, ready.error
    return found, None


ALL = [list(range(start, start + 5)) for start in range(0, SAMPLES, 5)]


@pytest.mark.parametrize("start", [0, 1, 57, 99, 100])
@pytest.mark.parametrize("prefetch_bytes", [1, 1000, 1 << 20])
def test_all_batches_come_in_order(make, start, prefetch_bytes):
    pipeline = make(start=start, limits=Limits(prefetch_bytes, 1 << 30, 1 << 12, 160, 0))
    assert drain(pipeline) == (ALL[start:], None)
    assert pipeline.get() is None


def test_the_first_group_is_one_batch_so_that_it_is_there_soon(make):
    assert len(make().get().batches) == 1


def test_reading_ahead_stays_within_the_budget(make):
    """Nothing is asked for beyond it while the consumer holds still."""
    backends = []

    def around(inner):
        backends.append(RecordingBackend(inner))
        return backends[-1]

    for budget in (1600, 16_000):
        pipeline = make(around, limits=Limits(budget, 1 << 30, 1 << 30, 160, 0))
        ready = pipeline.get()
        taken = len(ready.batches)
        time.sleep(0.1)
        planned = sum(extents.total_bytes for extents in backends[-1].brought) - 160 * taken
        # Two groups are always allowed; a group grows to half of the budget.
        assert planned <= max(budget, 2 * 160)
        assert drain(pipeline)[0] == ALL[taken:]


def test_the_last_group_is_not_lost_between_being_planned_and_being_there(make, monkeypatch):
    """The end of the epoch is where nothing is left to be planned and no group is there: both must be seen at once."""
    grow = Limits.group

    def slowly(self):
        time.sleep(0.002)
        return grow(self)

    monkeypatch.setattr(Limits, "group", slowly)
    for _ in range(5):
        # The consumer is at its heels: there is never more than one group.
        assert drain(make(lambda inner: SlowBackend(inner, 0.001), limits=Limits(1, 1 << 30, 1, 160, 0), start=70)) == (
            ALL[70:],
            None,
        )


class Dead:
    """A completion of a device on which something has failed: whoever asks it is told so."""

    def __init__(self, inner, times):
        self._inner, self._times = inner, times

    @property
    def landed(self):
        raise RuntimeError("the context is dead")

    def wait(self):
        if self._times:
            self._times.pop()
            raise RuntimeError("the context is dead")
        self._inner.wait()


@pytest.mark.parametrize("times", [0, 10**6])
@pytest.mark.parametrize("helps", [True, False])
def test_a_completion_that_cannot_even_be_asked(make, monkeypatch, helps, times):
    """The threads outlive it. If its bytes come all the same they are used; else the error comes in their place."""
    monkeypatch.setattr(Assembler, "takes_processor", helps)

    class Around:
        def __init__(self, inner):
            self._inner, self._times = inner, [None] * times

        def __getattr__(self, name):
            return getattr(self._inner, name)

        def read(self, wanted):
            landing = self._inner.read(wanted)
            return replace(landing, completion=Dead(landing.completion, self._times))

    found, error = drain(make(Around))
    assert found == (ALL if not times else [])
    assert str(error) == ("the context is dead" if times else "None")


def test_an_error_is_not_lost_either(make, monkeypatch):
    grow = Limits.group

    def slowly(self):
        time.sleep(0.002)
        return grow(self)

    monkeypatch.setattr(Limits, "group", slowly)
    for when in ("read", "completion"):
        fault = Fault(lambda: ReadError("bad"), files=[2], when=when)
        found, error = drain(
            make(lambda inner, fault=fault: FaultyBackend(inner, fault), limits=Limits(1, 1 << 30, 1, 160, 0))
        )
        assert str(error) == "bad"
        assert found == ALL[: len(found)]
        assert 0 < len(found) < 100


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
def test_windows_are_given_back_after_their_last_sample(make, mapped):
    backends = []

    def around(inner):
        backends.append(RecordingBackend(inner))
        return backends[-1]

    options = OrderOptions("block", 4, 20, 3)
    pipeline = make(around, options=options, mapped=mapped, limits=Limits(1000, 4 * 20 * 32, 1 << 12, 160, 20 * 32))
    found, error = drain(pipeline)
    assert error is None
    assert sorted(number for batch in found for number in batch) == list(range(SAMPLES))
    assert backends[0].held_bytes == 0
    assert backends[0].released_twice == 0


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_a_thread_that_is_torn_out_of_its_work_leaves_nobody_waiting(make, monkeypatch, kind):
    """Whatever ends it: its group is not waited for for ever."""
    torn = threading.Event()
    assemble = Assembler.assemble

    def tear(self, pieces, sizes):
        if threading.current_thread().name.startswith("gdsload-") and not torn.is_set():
            torn.set()
            raise kind("torn")
        return assemble(self, pieces, sizes)

    monkeypatch.setattr(Assembler, "assemble", tear)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    pipeline = make(limits=Limits(1, 1 << 30, 1, 160, 0))
    found, error = drain(pipeline)
    assert found == ALL[: len(found)]
    if kind is RuntimeError:
        assert (len(found), error) == (100, None), "it works the second time"
    elif torn.is_set():
        assert isinstance(error, LoaderClosedError)


def test_close_while_a_consumer_waits(make):
    pipeline = make(lambda inner: SlowBackend(inner, 0.3))
    errors = []

    def consume():
        try:
            drain(pipeline)
        except LoaderClosedError as error:
            errors.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    time.sleep(0.05)
    began = time.monotonic()
    pipeline.close()
    pipeline.close()
    consumer.join(10)
    assert time.monotonic() - began < 5
    assert len(errors) == 1
    with pytest.raises(LoaderClosedError, match="closed"):
        pipeline.get()


def test_stop_waits_for_nobody(make):
    pipeline = make(lambda inner: SlowBackend(inner, 0.3))
    threads = list(pipeline._threads)
    assert threads
    assert not pipeline.stopped
    began = time.monotonic()
    pipeline.stop()
    assert time.monotonic() - began < 0.2
    assert pipeline.stopped
    pipeline.close()
    assert not [thread for thread in threads if thread.is_alive()]


def test_a_pipeline_has_no_threads_before_it_is_started(make, monkeypatch):
    """Nobody could end them yet, if Ctrl-C struck."""
    before = set(threading.enumerate())
    monkeypatch.setattr(Pipeline, "start", lambda self: None)
    pipeline = make()
    assert set(threading.enumerate()) == before
    monkeypatch.undo()
    pipeline.start()
    threads = list(pipeline._threads)
    pipeline.start()
    assert pipeline._threads == threads
    assert drain(pipeline)[0] == ALL


def test_ctrl_c_right_behind_an_acquire_leaves_close_working(make, monkeypatch):
    """The consumer then holds locks that it has not entered; its own thread can still close, and other threads end."""
    monkeypatch.setattr("gdsload.engine.pipeline._LOOK_EVERY_S", 0.02)
    for name in ("_turn", "_helping"):
        pipeline = make(lambda inner: SlowBackend(inner, 0.2))
        threads = list(pipeline._threads)
        time.sleep(0.05)  # the threads wait for reads, and nobody plans
        assert getattr(pipeline, name).acquire(timeout=5)
        pipeline.close()
        assert threads
        assert not [thread for thread in threads if thread.is_alive()]


def test_groups_of_batches_within_the_limits():
    assert Limits(1 << 28, 0, 1 << 23, 1 << 20, 0).group() == 8
    assert Limits(1 << 28, 0, 1 << 23, 1, 0).group() == 64
    assert Limits(1 << 28, 0, 1 << 23, 1 << 30, 0).group() == 1
    assert Limits(1 << 20, 0, 1 << 23, 1 << 17, 0).group() == 4
    assert Limits(1, 0, 1 << 23, 0, 0).group() == 1


class Event:
    """An event that is past at once, or when it is said so, or fails."""

    def __init__(self, past=lambda: True):
        self.past = past

    def query(self):
        return self.past()

    def synchronize(self):
        while not self.past():
            time.sleep(0.001)


class Evaluated:
    """What `Direct` says where the GPU knows the samples."""

    told = False

    def samples(self, _steps):
        return None


class Failing(Evaluated):
    """Stands in for `Direct`: says that it can make batches, and cannot."""

    def __init__(self):
        self.started, self.given_up = 0, False

    def ready(self):
        return not self.given_up

    def give_up(self):
        self.given_up = True

    def shards(self, _steps):
        return np.zeros(0, np.int64)

    def start(self, _steps, _stopped, _samples):
        self.started += 1
        raise RuntimeError("no such kernel")


def test_what_cannot_be_made_directly_is_made_the_other_way_and_said(make, caplog):
    direct = Failing()
    pipeline, end = make(direct=direct), time.monotonic() + 10
    while not direct.started and time.monotonic() < end:
        time.sleep(0.001)  # a consumer that helps could have made all of them meanwhile
    assert drain(pipeline) == (ALL, None)
    assert direct.started
    assert direct.given_up
    assert "no such kernel" in caplog.text


class Queueing(Evaluated):
    """Stands in for `Direct`: the shards that it names for a group are the numbers of its steps."""

    def ready(self):
        return True

    def shards(self, steps):
        return np.array(steps)

    def start(self, steps, _stopped, _samples):
        batches = [{"x": torch.tensor([[sample] for sample in ALL[step]])} for step in steps]
        return Ready(batches, [5] * len(steps)), Event()


def test_the_shards_of_a_group_are_looked_at_once_it_is_there(make, monkeypatch):
    monkeypatch.setattr(Assembler, "takes_processor", False)  # a consumer that helps makes groups by addresses
    backends = []

    def around(inner):
        backends.append(RecordingBackend(inner))
        monkeypatch.setattr(inner, "check", lambda _files: None)  # there are fewer shards than steps
        return backends[-1]

    assert drain(make(around, direct=Queueing())) == (ALL, None)
    assert not backends[0].brought
    looked = [step for shards in backends[0].checked for step in shards]
    assert looked == [*range(len(ALL))]


class Sometimes(Evaluated):
    """Stands in for `Direct`: it can make batches of some groups, and of those between them it cannot."""

    def __init__(self, batches, seed):
        self.batches, self.random, self.made = batches, np.random.default_rng(seed), 0

    def ready(self):
        return bool(self.random.integers(2))

    def shards(self, _steps):
        return np.zeros(0, np.int64)

    def start(self, steps, _stopped, _samples):
        self.made += 1
        batches = [{"x": torch.tensor([[sample] for sample in self.batches[step]])} for step in steps]
        return Ready(batches, [5] * len(steps)), Event()


@pytest.mark.parametrize("seed", range(5))
def test_windows_that_are_held_while_batches_are_made_without_them(make, dataset, monkeypatch, seed):
    """They were handed out up to a step that is long past: what is wanted next of them lies somewhere else."""
    monkeypatch.setattr(Assembler, "takes_processor", False)
    backends = []

    def around(inner):
        backends.append(RecordingBackend(inner))
        return backends[-1]

    options = OrderOptions("block", 4, 50, 3)
    order = make_order(options, dataset.counts.tolist(), 0, 0)
    steps = Ordered(order, Schedule(SAMPLES, 5, lanes=3))
    expected = [steps.positions(range(step, step + 1)).tolist() for step in range(steps.steps)]
    limits = Limits(640, 6 * 50 * 32, 320, 160, 50 * 32)
    direct = Sometimes(expected, seed)
    pipeline = make(around, options=options, mapped=False, limits=limits, direct=direct)
    assert drain(pipeline) == (expected, None)
    assert direct.made
    pipeline.close()
    assert backends[0].brought
    assert backends[0].held_bytes == 0
    assert backends[0].released_twice == 0


class Drawn:
    """Steps of a sampler: batches of any size, and errors in the place of some."""

    def __init__(self, batches):
        self.batches, self.known = batches, 1

    @property
    def steps(self):
        return self.known

    def reach(self, step):
        self.known = max(self.known, min(step + 1, len(self.batches)))
        return max((len(batch) for batch in self.batches if not isinstance(batch, Exception)), default=0)

    def size(self, step):
        return len(self.batches[step])

    def positions(self, steps):
        for step in steps:
            if isinstance(self.batches[step], Exception):
                raise self.batches[step]
        return np.concatenate([np.array(self.batches[step], np.int64) for step in steps])


class Told:
    """Stands in for `Direct` where the host says the samples, and takes notes."""

    told = True

    def __init__(self, steps, brought=()):
        self.steps, self.brought, self.made = steps, brought, []

    def ready(self):
        return True

    def shards(self, _steps):
        return np.zeros(0, np.int64)

    def samples(self, steps):
        return self.steps.positions(steps)

    def prefers_copy_engine(self, samples):
        return not set(self.brought).isdisjoint(samples.tolist())

    def start(self, steps, _stopped, samples):
        sizes = [self.steps.size(step) for step in steps]
        self.made += samples.tolist()
        batches = [{"x": part[:, None]} for part in torch.from_numpy(samples).split(sizes)]
        return Ready(batches, sizes), Event()


@pytest.mark.parametrize("brought", [(), (3, 150), range(200)])
@pytest.mark.parametrize("fails_at", [None, 0, 1, 7, 29])
def test_samples_that_the_host_says(make, monkeypatch, brought, fails_at):
    """Batches of any size; what a sampler raised comes out in its place, whoever makes the group that it is in."""
    monkeypatch.setattr(Assembler, "takes_processor", False)
    random = np.random.default_rng(5)
    batches = [random.integers(0, 200, count).tolist() for count in random.integers(0, 9, 30)]
    steps = Drawn([*batches])
    error = ValueError("the sampler is empty")
    if fails_at is not None:
        steps.batches[fails_at:] = [error]
    direct = Told(steps, brought)
    found, raised = drain(make(steps=steps, direct=direct))
    assert found == batches[:fails_at]
    assert raised is (None if fails_at is None else error)
    assert bool(direct.made) == (len(brought) < 200 and fails_at != 0)
    assert set(direct.made).isdisjoint(brought)


class Late(Told):
    """Its groups are there when somebody has looked so often whether they are."""

    def __init__(self, steps, brought, looks):
        super().__init__(steps, brought)
        self.looks, self.order = looks, []

    def start(self, steps, stopped, samples):
        ready, _ = super().start(steps, stopped, samples)
        left = [self.looks]

        def past():
            left[0] -= 1
            return left[0] < 0

        return ready, Event(past)


@pytest.mark.parametrize("looks", [0, 1, 3, 100])
def test_groups_that_the_gpu_makes_among_those_that_are_brought(make, monkeypatch, looks):
    monkeypatch.setattr(Assembler, "takes_processor", False)
    random = np.random.default_rng(looks)
    batches = [random.integers(0, 200, 7).tolist() for _ in range(60)]
    direct = Late(Drawn(batches), range(0, 200, 40), looks)
    limits = Limits(1 << 20, 1 << 30, 1, 32 * 7, 0)  # groups of one batch
    assert drain(make(steps=direct.steps, direct=direct, limits=limits)) == (batches, None)
    assert direct.made


@pytest.mark.parametrize("slow", ["draws", "brought"])
def test_a_group_that_is_there_does_not_wait_for_one_behind_it(make, monkeypatch, slow):
    """Neither for what a slow sampler gives next, nor for bytes that come from the drive."""
    monkeypatch.setattr(Assembler, "takes_processor", False)
    monkeypatch.setattr(pipeline_module, "workers", lambda *_: 1)
    batches = [[1], [2], [50], [4]] if slow == "brought" else [[1], [2], [3], [4]]
    taken, held = threading.Event(), []

    def wait():
        held.append(not taken.wait(5))

    class Slow(Drawn):
        def reach(self, step):
            if step >= 4 and slow == "draws":  # one batch is known beyond what is planned, and one is planned
                wait()
            return super().reach(step)

    def around(inner):
        read = inner.read

        def late(wanted):
            landing = read(wanted)
            return replace(landing, completion=SimpleNamespace(wait=wait, landed=False))

        inner.read = late if slow == "brought" else read
        return inner

    limits = Limits(1 << 20, 1 << 30, 1, 32, 0)
    pipeline = make(around, steps=Slow(batches), direct=Told(Drawn(batches), [50]), limits=limits)
    found = []
    while len(found) < 2:
        found += [batch["x"][:, 0].tolist() for batch in pipeline.get().batches]
    taken.set()
    assert found[:2] == batches[:2]
    assert found + drain(pipeline)[0] == batches
    assert held
    assert not any(held), "what was there was handed out later than what it does not need"
