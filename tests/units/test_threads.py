"""Threads that are waited for, whatever strikes meanwhile; and threads while the interpreter is taken down."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import pytest

import gdsload
from gdsload import LoaderClosedError, threads


@pytest.fixture
def ending(monkeypatch):
    monkeypatch.setattr(threads, "_exiting", threading.Event())
    threads.note_exit()


@pytest.fixture
def loader(tmp_path):
    with gdsload.ShardWriter(tmp_path / "shards") as writer:
        writer.write_batch({"x": np.arange(100)})
    with gdsload.DataLoader(tmp_path / "shards", 10, device="cpu") as found:
        yield found


def test_nobody_is_kept_before(monkeypatch):
    monkeypatch.setattr(threads, "_exiting", threading.Event())
    began = time.monotonic()
    thread = threading.Thread(target=threads.stay_at_exit)
    thread.start()
    thread.join()
    assert time.monotonic() - began < threads._TAKEN_DOWN_S


@pytest.mark.usefixtures("ending")
def test_who_takes_it_down_is_not_kept(loader):
    assert sum(len(batch["x"]) for batch in loader) == 100
    loader.close()
    with pytest.raises(LoaderClosedError):
        next(iter(loader))


@pytest.mark.usefixtures("ending")
def test_others_stay_where_they_ask_for_a_batch_and_not_longer_than_somebody_can_wait(loader, monkeypatch):
    taken = []
    monkeypatch.setattr(threads, "_TAKEN_DOWN_S", 0.4)
    thread = threading.Thread(target=lambda: taken.append(next(iter(loader))), daemon=True)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert not taken
    thread.join(10)
    assert len(taken) == 1


@pytest.fixture
def held():
    """A worker that works until its event is set: held()."""
    made = []

    def start():
        out = threading.Event()
        worker = threads.Worker(out.wait, "held")
        threads.start_all([worker])
        made.append((worker, out))
        return worker, out

    yield start
    for worker, out in made:
        out.set()
        worker.wait()


def test_who_was_interrupted_while_waiting_waits_again(held, interrupted):
    worker, out = held()
    for _ in range(3):
        with interrupted(0.02):
            worker.wait()
    threading.Timer(0.1, out.set).start()
    worker.wait()
    assert out.is_set()
    assert worker not in threading.enumerate()


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="mended in Python 3.13")
def test_a_plain_join_takes_a_thread_for_dead_then(interrupted):
    """Without which a `Worker` would not be needed."""
    out = threading.Event()
    thread = threading.Thread(target=out.wait, daemon=True)
    thread.start()
    with interrupted(0.02):
        thread.join()
    assert not thread.is_alive()
    assert thread in threading.enumerate()
    out.set()


def test_several_wait_at_once(held):
    worker, out = held()
    ended = []

    def wait():
        worker.wait()
        ended.append(out.is_set())

    waiting = [threading.Thread(target=wait) for _ in range(4)]
    for thread in waiting:
        thread.start()
    time.sleep(0.02)
    assert ended == []
    out.set()
    for thread in waiting:
        thread.join(10)
    assert ended == [True] * 4


def test_one_that_was_never_started_is_not_waited_for():
    threads.Worker(lambda: None, "never").wait()


def test_nobody_waits_for_himself():
    errors = []

    def work():
        try:
            worker.wait()
        except RuntimeError as error:
            errors.append(str(error))

    worker = threads.Worker(work, "own")
    threads.start_all([worker])
    worker.wait()
    assert errors == ["a thread cannot wait for its own end"]


def test_one_whose_work_fails_has_ended(monkeypatch):
    seen = []
    monkeypatch.setattr(threading, "excepthook", lambda found: seen.append(str(found.exc_value)))

    def work():
        raise ValueError("broken")

    worker = threads.Worker(work, "broken")
    threads.start_all([worker])
    worker.wait()
    assert seen == ["broken"]
