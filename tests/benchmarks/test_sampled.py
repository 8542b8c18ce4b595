"""Threads are seen at the lines where they are, as many at a time as there are."""

import threading
from pathlib import Path
from queue import SimpleQueue

from benchmarks.sampled import Sampled, sampled

ELSEWHERE = """
def blocked(reached, gate):
    return reached.put(None), gate.get()
"""
"""A function of no folder, with one line: whoever is told that it is reached sees it at no other."""


def test_threads_that_wait_are_seen_where_they_wait():
    reached, gate, elsewhere = SimpleQueue(), SimpleQueue(), {}
    exec(compile(ELSEWHERE, "elsewhere.py", "exec"), elsewhere)

    def wait():
        elsewhere["blocked"](reached, gate)

    threads = [threading.Thread(target=wait, name=f"waiting-{number}") for number in range(3)]
    for thread in threads:
        thread.start()
        reached.get()
    try:
        found = Sampled(Path(__file__).parent)
        for _ in range(5):
            found.look()
    finally:
        for _ in threads:
            gate.put(None)
        for thread in threads:
            thread.join()
    ((line, often),) = found.lines()["waiting"].items()
    assert (often, found.looks) == (3.0, 5)
    assert line == f"{Path(__file__).name}:{wait.__code__.co_firstlineno + 1} wait -> blocked"
    assert found.lines(0) == {name: {} for name in found.lines()}


def test_a_block_is_looked_at_while_it_runs():
    with sampled(Path(__file__).parent) as found:
        while found.looks < 3:
            pass
    looks = found.looks
    lines = found.lines()["MainThread"]
    assert all("test_a_block_is_looked_at_while_it_runs" in line for line in lines)
    assert 0 < sum(lines.values()) <= 1.01  # at one line at a time; each is rounded
    assert found.looks == looks
