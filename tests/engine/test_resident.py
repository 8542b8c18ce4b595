"""An epoch out of VRAM, with host memory in the GPU's place: groups, errors and closing."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch

from gdsload import BudgetError, LoaderClosedError
from gdsload.engine import resident
from gdsload.engine.ready import Ready
from gdsload.engine.resident import ResidentPipeline
from gdsload.engine.stats import LoaderStats
from gdsload.order import Schedule


@pytest.fixture
def make(monkeypatch):
    stream = SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: stream)
    monkeypatch.setattr(resident, "current_stream", lambda _device: stream)

    def pipeline(gather, *, start=0, group=3):
        schedule = Schedule(105, 10)

        def make(steps):
            batches = gather(steps)
            return batches if isinstance(batches, Ready) else Ready(batches, schedule.sizes(steps))

        direct = SimpleNamespace(steps=schedule.steps, make=make)
        return ResidentPipeline(direct, start=start, stats=LoaderStats(), group=group, device=torch.device("cuda", 0))

    return pipeline


@pytest.mark.parametrize("start", [0, 4, 10, 11])
def test_groups_are_the_steps_in_order(make, start):
    pipeline, steps, sizes = make(list, start=start), [], []
    while (ready := pipeline.get()) is not None:
        steps += ready.batches
        sizes += ready.sizes
    assert steps == list(range(start, 11))
    assert sizes == [Schedule(105, 10).size(step) for step in steps]
    assert pipeline.get() is None


def test_no_memory_is_an_error_once_and_the_end(make, monkeypatch):
    def full(_steps):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(resident, "no_room", lambda _device, what: BudgetError(what))
    pipeline = make(full)
    ready = pipeline.get()
    assert (ready.batches, type(ready.error)) == ([], BudgetError)
    assert pipeline.get() is None


def test_an_error_of_a_transform_comes_behind_what_was_made_and_is_the_end(make):
    pipeline = make(lambda steps: Ready(list(steps[:2]), [10, 10], ValueError("odd")))
    ready = pipeline.get()
    assert (ready.batches, type(ready.error)) == ([0, 1], ValueError)
    assert pipeline.get() is None


def test_batches_that_are_made_in_inference_mode_can_be_trained_on(make):
    pipeline = make(lambda steps: [torch.zeros(1) for _ in steps])
    with torch.inference_mode():
        ready = pipeline.get()
    assert not ready.batches[0].is_inference()


def test_close_waits_for_what_is_being_queued(make):
    inside, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def slow(steps):
        inside.set()
        go_on.wait(20)
        assert not closed.is_set()
        return list(steps)

    pipeline, found = make(slow), []
    getting = threading.Thread(target=lambda: found.append(pipeline.get()))
    getting.start()
    assert inside.wait(20)
    closing = threading.Thread(target=lambda: (pipeline.close(), closed.set()))
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    go_on.set()
    closing.join(20)
    getting.join(20)
    assert len(found) == 1
    with pytest.raises(LoaderClosedError):
        pipeline.get()


def test_close_after_a_fork_waits_for_nobody(make, held_elsewhere, ends_in_a_child):
    """Another thread was inside `get`, and is not in the child to come out again."""
    pipeline = make(list)
    with held_elsewhere(pipeline._turn):
        assert ends_in_a_child(pipeline.close)
