"""A loader can be closed, dropped or left at any moment, from any thread: nothing hangs, and nothing is left."""

import gc
import random
import threading
import time
import weakref

import pytest

import gdsload
from gdsload import LoaderClosedError, Memory
from gdsload.engine import assemble
from gdsload.loader import life as life_module
from gdsload.loader.ranks import Schedules
from gdsload.shards.identity import Watch
from gdsload.testing import RecordingBackend, SlowBackend
from tests.loader.taking import BLOCK, begin, numbers
from tests.pools import no_threads


class TestClose:
    def test_batches_stay_and_all_iterators_end(self, load, plain, wrap, threads, mmap):
        """Even if the loader takes the iterators for finished, it must not free memory that one still reads."""
        wrap(lambda inner: SlowBackend(inner, 0.002))
        loader = load(plain, 10, mmap=mmap)
        through, iterators = iter(loader), [iter(loader) for _ in range(4)]
        assert len(list(through)) == 100
        batch, *_ = map(next, iterators)
        loader.set_epoch(0)
        iterators += begin(loader), iter(loader)
        loader.load_state_dict(loader.state_dict())
        assert threads()
        for _ in range(2):
            loader.close()
            assert threads() == []
        assert batch["x"][:, 0].tolist() == list(range(10))
        for iterator in iterators * 2:
            with pytest.raises(LoaderClosedError, match="the loader was closed. Make a new one"):
                next(iterator)
        assert list(through) == []
        with pytest.raises(LoaderClosedError, match="closed"):
            iter(loader)
        assert len(loader) == 100
        assert loader.backend.bytes_by_path["host"] >= 32_000

    def test_closing_an_iterator_ends_that_epoch_alone(self, load, plain):
        loader = load(plain, 10, with_index=True)
        iterator = begin(loader)
        iterator.close()
        iterator.close()
        assert list(iterator) == []
        assert loader.state_dict()["position"] == 10
        assert len(list(loader)) == 100


def test_whoever_was_interrupted_while_closing_closes_again(load, plain, wrap, threads, mmap, interrupted):
    """Files are unmapped after it: a thread that was still reading would crash the process."""
    landed_at = []

    def delay():
        landed_at.append(time.monotonic() + 0.4)
        return 0.4

    wrap(lambda inner: SlowBackend(inner, delay))
    loader = load(plain, 10, mmap=mmap, memory=Memory(prefetch=1))
    iterator = begin(loader)
    while landed_at[-1] < time.monotonic() + 0.3:  # as the consumer may have read and awaited the last one itself
        next(iterator)
        time.sleep(0.01)
    for _ in range(2):
        interrupted(0.05, loader.close)
    assert threads()
    loader.close()
    assert threads() == []


def test_struck_by_signals_while_files_are_closed(load, plain, wrap, mmap, threads):
    """By Ctrl-C, and by a handler that closes the loader."""
    made = wrap(RecordingBackend)
    loader = load(plain, 10, mmap=mmap, **BLOCK)
    _iterator, (backend,) = begin(loader), made
    strikes, close = [1, 2], backend.close

    def struck():
        if strikes:
            strikes.pop()
            raise KeyboardInterrupt
        loader.close()
        close()

    backend.close = struck
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            loader.close()
    assert backend.closed == 0
    loader.close()
    loader.close()
    assert (backend.closed, backend.held_bytes, threads()) == (1, 0, [])
    assert loader.backend.bytes_by_path["host"] > 0


def test_closed_by_a_signal_while_files_are_opened(load, plain, wrap, threads, mmap, monkeypatch):
    """As a handler of SIGTERM does, wherever it strikes."""
    made = wrap(RecordingBackend)
    loader = load(plain, 10, mmap=mmap)
    opened = life_module.open_resources

    def struck(*args):
        loader.close()
        return opened(*args)

    monkeypatch.setattr(life_module, "open_resources", struck)
    with pytest.raises(LoaderClosedError, match="closed"):
        next(iter(loader))
    assert [one.closed for one in made] == [1]
    assert threads() == []


def test_closed_in_a_thread_of_its_own(load, plain, wrap, soon, threads):
    """By what the garbage collector runs there; waiting for itself it would hang."""

    class Closing(SlowBackend):
        def read(self, wanted, to="device"):
            if threading.current_thread().name.startswith("gdsload-") and left:
                left.pop().close()
            return super().read(wanted, to)

    wrap(lambda inner: Closing(inner, 0.001))
    loader = load(plain, 10, memory=Memory(prefetch=1))
    left, iterator = [loader], iter(loader)
    with pytest.raises(LoaderClosedError):
        for _ in range(1000):
            next(iterator)
    loader.close()
    soon(lambda: threads() == [])


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()])
def test_an_epoch_whose_threads_cannot_be_started_is_not_over(load, plain, threads, error):
    loader = load(plain, 10)
    with no_threads(error), pytest.raises(type(error)):
        next(iter(loader))
    assert (loader.epoch, threads()) == (0, [])
    assert len(list(loader)) == 100
    assert loader.epoch == 1


@pytest.mark.parametrize("seed", range(24))
def test_from_another_thread_at_any_moment(load, plain, wrap, threads, in_thread, soon, seed):
    chosen, mmap = random.Random(seed // 2), seed % 2 == 0
    delay = chosen.choice([0, 0.001, 0.01])
    wrap(lambda inner: SlowBackend(inner, lambda: chosen.random() * delay))
    order = chosen.choice([{}, {"shuffle": "full"}, BLOCK])
    loader = load(
        plain, 10, mmap=mmap, with_index=True, memory=Memory(prefetch=chosen.choice([1, 2000, "1MiB"])), **order
    )

    def consume():
        for _ in range(100):
            for batch in loader:
                assert batch["x"][:, 0].tolist() == batch["index"].tolist()

    consumer = in_thread(consume)
    time.sleep(chosen.random() * chosen.choice([0.001, 0.02, 0.1]))
    for closer in [in_thread(loader.close) for _ in range(chosen.choice([1, 3]))]:
        closer.result(timeout=20)
    assert type(consumer.exception(timeout=20)) is LoaderClosedError
    soon(lambda: threads() == [])  # the consumer may have dropped its iterator after all
    assert loader.state_dict()["position"] % 10 == 0


@pytest.mark.parametrize("seed", range(5))
def test_an_iterator_from_another_thread_at_any_moment(load, plain, wrap, in_thread, mmap, seed):
    chosen = random.Random(seed)
    wrap(lambda inner: SlowBackend(inner, 0.001))
    loader = load(plain, 10, mmap=mmap, with_index=True)
    iterator = iter(loader)
    consumer = in_thread(lambda: [batch["index"][0].item() for batch in iterator])
    time.sleep(chosen.random() * 0.03)
    iterator.close()
    found = consumer.result(timeout=20)
    assert found == list(range(0, 10 * len(found), 10))


@pytest.fixture
def no_collection():
    """Garbage in circles stays, as it does for a long time in programs that make little of it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class TestAbandoned:
    def test_a_loader_and_its_iterator_are_no_circle(self, plain, threads, soon, mmap, no_collection):
        loader = gdsload.DataLoader(plain, 10, device="cpu", mmap=mmap, memory=Memory(prefetch=1))
        iterator = begin(loader)
        gone = [weakref.ref(loader), weakref.ref(iterator)]
        del loader, iterator
        assert [reference() for reference in gone] == [None, None]
        soon(lambda: threads() == [])

    @pytest.mark.parametrize("hook", ["transform", "device_transform", "sample_transform"])
    def test_an_error_of_a_transform_is_no_circle(self, load, plain, soon, hook, no_collection):
        gone = []

        def fail(batch):
            values = batch["x"].clone()
            gone.append(weakref.ref(values))
            raise ValueError(len(values))

        iterator = iter(load(plain, 1000, ahead=False, **{hook: fail}))
        with pytest.raises(ValueError, match=r"\d"):
            next(iterator)
        gone.append(weakref.ref(iterator))
        del iterator
        soon(lambda: {reference() for reference in gone} == {None})

    def test_with_slow_reads_nobody_waits(self, load, plain, wrap, threads, soon, mmap):
        wrap(lambda inner: SlowBackend(inner, 0.3))
        loader = load(plain, 10, mmap=mmap)
        iterator = begin(loader)
        began = time.monotonic()
        del iterator
        assert time.monotonic() - began < 0.2
        soon(lambda: not [name for name in threads() if "host" not in name])

    def test_in_a_circle_of_references(self, plain, threads, soon, mmap):
        loader = gdsload.DataLoader(plain, 10, device="cpu", mmap=mmap)
        iterator = begin(loader)
        circle = [iterator, loader]
        circle.append(circle)
        del iterator, loader, circle
        gc.collect()
        soon(lambda: threads() == [])

    def test_collected_in_one_of_the_librarys_own_threads(self, load, plain, wrap, threads, soon):
        """Garbage is collected anywhere, also where waiting for the threads is waiting for oneself."""
        left = []

        class Collecting(SlowBackend):
            def read(self, wanted, to="device"):
                if left:
                    left.clear()
                    gc.collect()
                return super().read(wanted, to)

        wrap(lambda inner: Collecting(inner, 0.001))
        loader = load(plain, 10, memory=Memory(prefetch=1))
        for _ in range(2):
            first, second = iter(loader), iter(loader)
            next(first), next(second)
            circle = [first]
            circle.append(circle)
            left.append(circle)
            del first, circle
            assert len(list(second)) == 99
        loader.close()
        soon(lambda: threads() == [])


class SlowToGoOn:
    """A lock whose holder loses the processor when it has given it back: all others have their turn first."""

    def __init__(self):
        self._lock = threading.RLock()

    def __enter__(self):
        self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()
        time.sleep(0.02)


class TestIterators:
    def test_one_that_is_made_but_not_used_costs_and_changes_nothing(self, load, plain, wrap, threads):
        made = wrap(RecordingBackend)
        loader = load(plain, 10, "full", with_index=True)
        state = loader.state_dict()
        unused = [iter(loader) for _ in range(100)]
        assert threads() == []
        assert made == []
        assert (loader.state_dict(), loader.epoch) == (state, 0)
        first = numbers(loader)
        loader.set_epoch(0)
        assert numbers(unused[57]) == first

    def test_it_is_its_own_iterator_and_stays_at_the_end(self, load, plain):
        iterator = iter(load(plain, 500))
        assert iter(iterator) is iterator
        assert len(list(iterator)) == 2
        assert next(iterator, "none") == "none"

    def test_one_of_them_shared_by_threads(self, load, plain, in_thread):
        iterator = iter(load(plain, 3, with_index=True))
        workers = [in_thread(lambda: numbers(iterator)) for _ in range(4)]
        found = [batch for worker in workers for batch in worker.result(timeout=20)]
        assert sorted(index for batch in found for index in batch) == list(range(1000))

    @pytest.mark.parametrize("strikes", ["begin", "transform", "end"])
    def test_what_ends_it_is_raised_in_all_threads_and_what_a_transform_raises_in_one(
        self, load, plain, in_thread, monkeypatch, strikes
    ):
        left = [strikes]

        def strike(name):
            if name in left:
                raise ValueError(left.clear() if name == "transform" else name)

        now = Schedules.now
        monkeypatch.setattr(Schedules, "now", lambda *given: strike("begin") or now(*given))
        monkeypatch.setattr(Watch, "check_passed", lambda _: strike("end"))
        loader = load(plain, 100, transform=lambda batch: strike("transform") or batch)
        iterator = iter(loader)
        monkeypatch.setattr(iterator, "_turn", SlowToGoOn())
        found = []
        # No list asks for its length, which says the same.
        workers = [in_thread(lambda: found.extend(batch for batch in iterator)) for _ in range(4)]
        errors = [error for worker in workers if (error := worker.exception(timeout=20)) is not None]
        goes_on = strikes == "transform"
        assert [type(error) for error in errors] == [ValueError] * (1 if goes_on else 4)
        assert len(found) == {"begin": 0, "transform": 9, "end": 10}[strikes]
        if goes_on:
            assert next(iterator, None) is None
        else:
            with pytest.raises(ValueError, match=strikes):
                next(iterator)
            left.clear()
            assert loader.state_dict()["position"] == 100 * len(found)


@pytest.mark.parametrize("count", [1, 2])
def test_no_memory_is_given_back_under_whoever_gathers(load, plain, wrap, in_thread, mmap, monkeypatch, count):
    made = wrap(RecordingBackend)
    started, seen = threading.Event(), []
    monkeypatch.setattr("gdsload.engine.limits.MOST_THREADS", count)

    def gather(*arguments):
        started.set()
        time.sleep(0.15)
        seen.append(made[0].closed)
        return gather_rows(*arguments)

    gather_rows = assemble.gather_rows
    monkeypatch.setattr(assemble, "gather_rows", gather)
    loader = load(plain, 10, mmap=mmap)
    consumer = in_thread(list, loader)
    assert started.wait(10)
    loader.close()
    assert made[0].closed == 1
    assert set(seen) == {0}
    assert isinstance(consumer.exception(timeout=10), LoaderClosedError)
