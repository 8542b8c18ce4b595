"""Threads that decode images: whatever comes between while they are started, what they are given is done."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from gdsload.engine.images import processors
from gdsload.engine.images.processors import Processors


@pytest.fixture
def pool():
    made = Processors(2, "gdsload-tried")
    yield made
    made.close()


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("begun", [0, 1])
def test_threads_that_could_not_be_started_are_started_later(pool, monkeypatch, error, begun):
    """Work that nobody takes would be waited for for ever."""
    start_all, done = processors.start_all, []

    def struck(workers):
        start_all(workers[:begun])
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(processors, "start_all", struck)
        with suppress(RuntimeError, KeyboardInterrupt):
            pool.start([lambda: done.append(1)]).wait()
    # One thread does it all where there can be no others; with none, or after Ctrl-C, nothing was begun.
    assert done == ([1] if begun and isinstance(error, RuntimeError) else [])
    both = threading.Barrier(2)
    tasks = pool.start([lambda: both.wait(10)] * 2)
    assert [tasks.done.get(timeout=20) for _ in range(2)] == [None, None]
