"""Groups that the consumer queues itself: in order, within budgets, each batch once, whatever goes wrong and when."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import gdsload
from gdsload.backends.host import HostBackend
from gdsload.engine import ahead
from gdsload.engine.ahead import AheadPipeline
from gdsload.engine.assemble import Assembler, BatchForm
from gdsload.engine.groups import Limits
from gdsload.engine.ready import Ready
from gdsload.engine.stage import Job, Ordered, Selection
from gdsload.engine.stats import LoaderStats
from gdsload.errors import LoaderClosedError, ReadError
from gdsload.order import OrderOptions, Schedule, make_order
from gdsload.shards.files import Files
from gdsload.shards.shard_table import ShardTable
from gdsload.system.memory import BatchPool
from gdsload.testing import SlowBackend

SAMPLES, BATCH = 203, 5
STEPS = -(-SAMPLES // BATCH)
ALL = [list(range(start, min(start + BATCH, SAMPLES))) for start in range(0, SAMPLES, BATCH)]
BATCH_BYTES = 8 * BATCH


class Queueing:
    """Stands in for `Direct`: makes batches at once, and takes notes."""

    told = False

    def __init__(self):
        self.started, self.delivered, self.ahead = [], 0, []
        self.ready_until = STEPS  # the first step for which it is not ready
        self.failing: dict[int, Exception] = {}  # at groups that hold these steps, when they are queued
        self.lost: set[int] = set()  # the same, when they are waited for
        self.given_up = False
        self.inside = lambda: None

    def ready(self):
        return not self.given_up and (self.started[-1].stop if self.started else 0) < self.ready_until

    def give_up(self):
        self.given_up = True

    def shards(self, _steps):
        return np.zeros(1, np.int64)

    def samples(self, _steps):
        return None

    def start(self, steps, _stopped, _samples=None):
        self.inside()
        for step in steps:
            if step in self.failing:
                raise self.failing[step]
        self.started.append(steps)
        batches = [{"x": torch.tensor(ALL[step])} for step in steps]

        def synchronize():
            if self.lost & set(steps):
                raise RuntimeError("an illegal memory access")
            self.delivered += len(steps)

        self.ahead.append(steps.stop - self.delivered)
        event = SimpleNamespace(synchronize=synchronize, query=lambda: False)
        return Ready(batches, [len(ALL[step]) for step in steps]), event


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("ahead") / "shards"
    with gdsload.ShardWriter(path, shard_bytes=512) as writer:
        writer.write_batch({"x": np.arange(SAMPLES)})
    return gdsload.ShardDataset(path)


@pytest.fixture
def make(dataset, monkeypatch):
    """Makes pipelines and closes them: make(direct, around, limits=..., start=...)."""
    made = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda _stream: None)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: nullcontext())

    def build(direct, around=lambda inner: inner, *, start=0, prefetch_bytes=1 << 20, group_bytes=1 << 10):
        files = Files(dataset.sources, mapped=True)
        backend = around(HostBackend(files))
        order = make_order(OrderOptions("sequential", 0, 0, 1), dataset.counts.tolist(), 0, 0)
        steps = Ordered(order, Schedule(SAMPLES, BATCH))
        job = Job(ShardTable(files, dataset.schema), steps, Selection(), ("x",))
        maker = Assembler(dataset.schema, BatchPool(1 << 20), BatchForm())
        maker.stream, maker.device = SimpleNamespace(synchronize=lambda: None), torch.device("cpu")
        limits = Limits(prefetch_bytes, 1 << 30, group_bytes, BATCH_BYTES, 0)
        pipeline = AheadPipeline(job, backend, maker, limits=limits, start=start, stats=LoaderStats(), direct=direct)
        made.append((pipeline, backend))
        return pipeline

    yield build
    for pipeline, backend in made:
        pipeline.close()
        backend.close()


def drain(pipeline):
    """All batches, as the numbers of their samples, and the error behind them."""
    found = []
    while (ready := pipeline.get()) is not None:
        assert [len(batch["x"]) for batch in ready.batches] == ready.sizes
        found += [batch["x"].tolist() for batch in ready.batches]
        if ready.error is not None:
            return found, ready.error
    return found, None


@pytest.mark.parametrize("start", [0, 1, 7, STEPS - 1, STEPS])
def test_batches_come_in_order_each_once(make, start):
    direct = Queueing()
    pipeline = make(direct, start=start)
    assert drain(pipeline) == (ALL[start:], None)
    assert pipeline.get() is None
    assert [step for steps in direct.started for step in steps] == list(range(start, STEPS))


def test_the_first_group_is_one_batch_and_the_next_ones_grow(make):
    direct = Queueing()
    drain(make(direct, prefetch_bytes=17 * BATCH_BYTES))
    sizes = [len(steps) for steps in direct.started]
    assert sizes[:5] == [1, 2, 4, 8, 8]
    first = Queueing()
    assert len(make(first).get().batches) == 1
    assert len(first.started) == 2  # and not all that there is room for


@pytest.mark.parametrize("batches", [1, 2, 5, 16, 1000])
def test_what_is_ahead_keeps_to_the_budget_but_for_two_groups(make, batches):
    direct = Queueing()
    limits = Limits(batches * BATCH_BYTES, 0, 8 * BATCH_BYTES, BATCH_BYTES, 0)
    assert max(limits.group_on_gpu(), 2) <= max(batches, 2)
    drain(make(direct, prefetch_bytes=batches * BATCH_BYTES, group_bytes=8 * BATCH_BYTES))
    assert max(direct.ahead) <= max(batches, 2 * limits.group_on_gpu())
    assert max(direct.ahead) >= max(min(batches, STEPS) // 2, 2)  # and it is used


@pytest.mark.parametrize("step", [0, 1, 2, 6, 20, STEPS - 1])
@pytest.mark.parametrize("how", ["unready", "refused", "full", "broken", "lost"])
def test_what_cannot_be_made_so_is_made_the_other_way_from_there_on(make, caplog, step, how):
    direct = Queueing()
    if how == "unready":
        direct.ready_until = step
    elif how == "lost":
        direct.lost = {step}
    else:
        errors = {"refused": ReadError("moved away"), "full": torch.OutOfMemoryError("no room"),
                  "broken": RuntimeError("no such kernel")}  # fmt: skip
        direct.failing = {step: errors[how]}
    pipeline = make(direct)
    assert drain(pipeline) == (ALL, None)
    assert not pipeline._under_way
    assert pipeline._rest is None or pipeline._rest._direct is direct
    assert ("no such kernel" in caplog.text) == (how == "broken")
    assert direct.given_up == (how == "broken")


@pytest.mark.parametrize("when", [1, 2, 3, 5])
def test_a_changed_file_is_an_error_behind_all_batches_before(make, when):
    looks = []

    def around(inner):
        def check(_files, **_options):
            looks.append(None)
            if len(looks) >= when:
                raise ReadError("it has changed")

        inner.check = check
        return inner

    found, error = drain(make(Queueing(), around))
    assert isinstance(error, ReadError)
    assert found == ALL[: len(found)]
    assert bool(found) == (when > 1)  # a group is looked at when it is there


def test_batches_that_are_made_in_inference_mode_can_be_trained_on(make):
    pipeline = make(Queueing())
    with torch.inference_mode():
        ready = pipeline.get()
    assert not ready.batches[0]["x"].is_inference()


def test_close_waits_for_what_is_being_queued_and_then_for_the_gpu(make):
    direct, inside, go_on, order = Queueing(), threading.Event(), threading.Event(), []
    direct.inside = lambda: (inside.set(), go_on.wait(20), order.append("queued"))
    pipeline = make(direct)
    pipeline._maker.stream = SimpleNamespace(synchronize=lambda: order.append("waited"))

    def get():
        with pytest.raises(LoaderClosedError):
            pipeline.get()
        order.append("ended")

    getting = threading.Thread(target=get)
    getting.start()
    assert inside.wait(20)
    closing = threading.Thread(target=lambda: (pipeline.close(), order.append("closed")))
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    go_on.set()
    closing.join(20)
    getting.join(20)
    assert order.index("queued") < order.index("waited") < order.index("closed")
    assert "ended" in order
    with pytest.raises(LoaderClosedError):
        pipeline.get()


def test_an_error_in_asking_whether_it_can_be_done_comes_behind_what_has_been_made(make, caplog):
    direct, asked = Queueing(), []

    def ready():
        asked.append(None)
        if len(asked) == 4:
            raise RuntimeError("no upload")
        return not direct.given_up

    direct.ready = ready
    assert drain(make(direct)) == (ALL, None)
    assert direct.given_up
    assert "no upload" in caplog.text


def test_ctrl_c_while_a_group_is_queued_leaves_the_consumer_on_its_stream(make, monkeypatch):
    direct, current = Queueing(), ["mine"]

    def interrupted():
        current[0] = "the loader's"  # as if torch had no time to go back
        raise KeyboardInterrupt

    direct.inside = interrupted
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: current[0])
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: current.__setitem__(0, stream))
    pipeline = make(direct)
    with pytest.raises(KeyboardInterrupt):
        pipeline.get()
    assert current == ["mine"]
    pipeline.close()
    assert not pipeline._under_way


def test_a_handler_that_closes_while_a_group_is_queued_ends_that(make):
    """Or it would be queued behind the handler, out of files that are no longer there."""
    direct = Queueing()
    pipeline = make(direct)
    direct.inside = pipeline.close
    with pytest.raises(LoaderClosedError):
        pipeline.get()
    assert pipeline._rest is None
    direct.inside = lambda: None
    pipeline.close()
    with pytest.raises(LoaderClosedError):
        pipeline.get()
    assert not direct.started


def test_close_ends_a_consumer_that_waits_for_reads_of_the_rest(make):
    direct = Queueing()
    direct.given_up = True
    pipeline, raised = make(direct, lambda inner: SlowBackend(inner, 0.2)), []

    def take():
        with pytest.raises(LoaderClosedError) as caught:
            drain(pipeline)
        raised.append(caught.value)

    taking = threading.Thread(target=take)
    taking.start()
    end = time.monotonic() + 20
    while pipeline._rest is None and time.monotonic() < end:
        time.sleep(0.001)
    pipeline.close()
    taking.join(20)
    assert len(raised) == 1


def test_stop_waits_for_nobody(make, held_elsewhere):
    """A finaliser calls it, in any thread and at any point."""
    pipeline = make(Queueing())
    with held_elsewhere(pipeline._turn):
        pipeline.stop()
        assert pipeline.stopped
    direct = Queueing()
    direct.given_up = True
    pipeline = make(direct)
    pipeline.get()
    pipeline.stop()
    assert pipeline._rest.stopped, "its threads would go on"


def test_close_after_a_fork_waits_for_nobody(make, held_elsewhere, ends_in_a_child):
    """Another thread was inside `get`, and is not in the child to come out again."""
    pipeline = make(Queueing())
    with held_elsewhere(pipeline._turn):
        assert ends_in_a_child(pipeline.close)


@pytest.mark.parametrize("least", [1, 3, 1000])
@pytest.mark.parametrize("start", [0, 1, STEPS - 2, STEPS])
def test_groups_become_smaller_towards_the_end(make, monkeypatch, least, start):
    """Half of what is left, down to so many batches: nothing is loaded while the last group is used."""
    monkeypatch.setattr(ahead, "_LAST_BYTES", least * BATCH_BYTES)
    direct = Queueing()
    assert drain(make(direct, start=start)) == (ALL[start:], None)
    left = [STEPS - steps.start for steps in direct.started]
    sizes = [len(steps) for steps in direct.started]
    wanted = [min(2**number, max(-(-some // 2), least), some) for number, some in enumerate(left)]
    assert sizes == wanted
