"""Ctrl-C while a loader is iterated: it is raised in the consumer, the loader stops, and its state says where to go on."""

import signal
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest

import gdsload
from gdsload.testing import SlowBackend

HOUSE = str(Path(gdsload.__file__).parent)


def test_the_loader_stops_within_a_second_and_says_where_to_go_on(load, plain, wrap, threads, mmap):
    def strike():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    wrap(lambda inner: SlowBackend(inner, 0.05))
    loader, found = load(plain, 10, mmap=mmap, memory=gdsload.Memory(prefetch=2000)), []
    timer = threading.Timer(0.15, strike)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        for batch in loader:
            found += [batch]
    struck = time.monotonic()
    state = loader.state_dict()
    loader.close()
    loader.close()
    assert time.monotonic() - struck < 1
    timer.join()
    assert threads() == []
    other = load(plain, 10, mmap=mmap)
    other.load_state_dict(state)
    assert [batch["x"][0, 0].item() for batch in [*found, *other]] == list(range(0, 1000, 10))


@pytest.mark.usefixtures("own_end")
def test_ctrl_c_does_not_wait_for_reads_that_hang(load, plain, wrap, threads, interrupted):
    held, hangs = threading.Event(), threading.Event()

    def delay():
        if held.is_set():
            hangs.wait(30)
        return 0

    wrap(lambda inner: SlowBackend(inner, delay))
    loader = load(plain, 10, mmap=False, memory=gdsload.Memory(prefetch=1))
    iterator = iter(loader)
    next(iterator)
    held.set()
    began = time.monotonic()
    interrupted(0.2, lambda: list(iterator))
    assert time.monotonic() - began < 1
    assert threads()
    state = loader.state_dict()
    hangs.set()
    loader.close()
    assert threads() == []
    assert 0 < state["position"] < 1000


def test_nothing_can_be_struck_where_things_are_dropped(plain, mmap, threads, soon):
    """Python forgets what is raised there; so no Python code runs, in this thread, that Ctrl-C could strike."""
    entered = []

    def enter(frame, _event, _):
        if frame.f_code.co_filename.startswith(HOUSE) or frame.f_code.co_filename == weakref.__file__:
            entered.append(frame.f_code.co_qualname)

    dataset = gdsload.ShardDataset(plain, mmap=mmap)
    dataset.read_batch([0, 1])
    loader = gdsload.DataLoader(dataset, 10, device="cpu", memory=gdsload.Memory(prefetch=2000))
    through, half_way = iter(loader), iter(loader)
    batches = [next(half_way), *through]
    before = sys.gettrace()
    sys.settrace(enter)
    try:
        del half_way, through
        del batches
        del loader
        del dataset
    finally:
        sys.settrace(before)
    assert entered == []
    soon(lambda: threads() == [])
