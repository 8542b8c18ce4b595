"""Calls of a loader while another thread begins an epoch of it, which opens files and may take long."""

import itertools
import time

import pytest

from gdsload import Memory
from gdsload.loader import life as life_module
from tests.loader.samplers.test_samplers import RollsOver
from tests.pools import Held


@pytest.fixture
def beginning(monkeypatch, in_thread):
    """Has a thread ask an iterator for batches, held where files are opened: gives what lets it go on and gives them.

    ``go_on = beginning(iterator, 3)``, later ``batches = go_on()``
    """
    held, real, consumers = Held(), life_module.open_resources, []

    def slow(*given):
        held()
        return real(*given)

    def begin(iterator, batches):
        consumer = in_thread(lambda: list(itertools.islice(iterator, batches)))
        consumers.append(consumer)
        assert held.begun.wait(20)

        def go_on():
            held.may_end.set()
            return consumer.result(timeout=20)

        return go_on

    monkeypatch.setattr(life_module, "open_resources", slow)
    yield begin
    held.may_end.set()
    for consumer in consumers:
        consumer.exception(timeout=20)


def test_an_iterator_that_is_closed_meanwhile_gives_no_batch(load, plain, beginning, threads):
    iterator = iter(load(plain, 10, memory=Memory(prefetch=1)))
    go_on = beginning(iterator, 1)
    iterator.close()
    assert (go_on(), list(iterator), threads()) == ([], [], [])


def test_what_begins_ends_where_a_state_is_loaded(load, plain, beginning, in_thread):
    """It would draw on from the sampler that is set back."""
    loader = load(plain, 10, sampler=RollsOver(), memory=Memory(prefetch=1))
    state = loader.state_dict()
    iterator = iter(loader)
    go_on = beginning(iterator, 1)
    loading = in_thread(loader.load_state_dict, state)
    time.sleep(0.05)  # until it waits
    go_on()
    loading.result(timeout=20)
    assert list(iterator) == []
    assert [batch["x"][0, 0].item() for batch in loader] == list(range(3, 900, 30))


@pytest.mark.parametrize("asked", ["state_dict", "set_epoch", "load_state_dict", "__reduce__", "close"])
def test_a_child_that_is_forked_meanwhile_waits_for_nobody(load, plain, beginning, asked, ends_in_a_child):
    loader = load(plain, 10)
    given = {"set_epoch": [3], "load_state_dict": [loader.state_dict()]}.get(asked, [])
    go_on = beginning(iter(loader), 2)
    assert ends_in_a_child(lambda: getattr(loader, asked)(*given))
    assert len(go_on()) == 2
