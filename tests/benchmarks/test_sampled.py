"""Threads are seen at the lines where they are, as many at a time as there are."""

import threading
from pathlib import Path

from benchmarks.sampled import Sampled, sampled


def test_threads_that_wait_are_seen_where_they_wait():
    reached, done = threading.Semaphore(0), threading.Event()

    def wait():
        reached.release()
        done.wait(30)

    threads = [threading.Thread(target=wait, name=f"waiting-{number}") for number in range(3)]
    for thread in threads:
        thread.start()
        reached.acquire()
    try:
        found = Sampled(Path(__file__).parent)
        for _ in range(5):
            found.look()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    ((line, often),) = found.lines()["waiting"].items()
    assert (often, found.looks) == (3.0, 5)
    assert line.startswith(f"{Path(__file__).name}:{wait.__code__.co_firstlineno + 2} wait -> ")
    assert found.lines(0) == {name: {} for name in found.lines()}


def test_a_block_is_looked_at_while_it_runs():
    with sampled(Path(__file__).parent) as found:
        while found.looks < 3:
            pass
    looks = found.looks
    ((line, often),) = found.lines()["MainThread"].items()
    assert "test_a_block_is_looked_at_while_it_runs" in line
    assert 0 < often <= 1
    assert found.looks == looks
