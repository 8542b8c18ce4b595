"""Epochs that are left before their end, in the middle of which there are states, copies and other iterators."""

import copy
import json
import threading
import time
from itertools import islice

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler

from gdsload import Memory
from tests.loader.samplers.test_samplers import ALL, RESUMABLE, numbers
from tests.loader.taking import begin, seeded
from tests.loader.test_copies import WAYS


class Own(torch.utils.data.Sampler):
    """Of somebody else: all that is known of it is its generator."""

    def __init__(self):
        self.generator = seeded()

    def __len__(self):
        return len(ALL)

    def __iter__(self):
        for _ in ALL:
            yield int(torch.randint(len(ALL), (), generator=self.generator))


OF_TORCH = ["random", "random, 2.5 times", "with replacement", "weighted", "subset"]
SAMPLERS = {"own": Own} | {name: RESUMABLE[name] for name in OF_TORCH}


def some(loader, batches, wait_s=0.0):
    """The numbers of an epoch's first batches; the iterator is dropped, once some are drawn ahead."""
    iterator = iter(loader)
    found = numbers(islice(iterator, batches))
    time.sleep(wait_s)
    return found


def given(sampler, wrap):
    return {"batch_sampler": BatchSampler(sampler, 100, False)} if wrap else {"batch_size": 100, "sampler": sampler}


@pytest.mark.parametrize("wrap", [False, True], ids=["sampler", "batch sampler"])
@pytest.mark.parametrize(("taken", "wait_s"), [(0, 0.0), (1, 0.0), (3, 0.02), (26, 0.0)])
@pytest.mark.parametrize("name", OF_TORCH)
def test_epochs_that_are_left_early_are_those_of_torch(make, name, taken, wait_s, wrap):
    """Each draws from the generator after what the consumer got, and not after what was drawn ahead, however much.

    But a sampler of one's own draws as far ahead as it was asked to.
    """
    plain = torch.utils.data.DataLoader(ALL, 100, sampler=SAMPLERS[name]())
    wanted = [[batch.tolist() for batch in islice(plain, taken)] for _ in range(3)]
    for prefetch in (100, 2**20):
        sampler, memory = SAMPLERS[name](), Memory(prefetch=prefetch)
        with make(memory=memory, **given(sampler, wrap)) as loader:
            assert [some(loader, taken, wait_s) for _ in range(3)] == wanted


@pytest.mark.parametrize("wrap", [False, True], ids=["sampler", "batch sampler"])
@pytest.mark.parametrize("taken", [1, 2])
@pytest.mark.parametrize("name", OF_TORCH)
def test_the_epoch_behind_a_resumed_one_that_is_left_is_that_of_the_run_that_went_on(make, name, taken, wrap):
    """Frameworks that limit an epoch save in the middle of it, and go on with the next one."""
    with make(**given(SAMPLERS[name](), wrap)) as loader, make(**given(SAMPLERS[name](), wrap)) as other:
        first = some(loader, taken)
        state = json.loads(json.dumps(loader.state_dict()))
        loader.set_epoch(1)
        wanted = numbers(loader), numbers(loader)
        other.load_state_dict(state)
        other.set_epoch(1)
        assert other.epoch == 1
        again = json.loads(json.dumps(other.state_dict()))
        assert (numbers(other), numbers(other)) == wanted
        other.load_state_dict(again)
        assert numbers(other) == wanted[0]
        assert wanted[0][: len(first)] != first


@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
class TestCopies:
    def test_a_sampler_that_was_told_its_epoch_directly_keeps_it(self, make, how):
        sampler = DistributedSampler(ALL, 2, 0)
        sampler.set_epoch(5)
        with make(100, sampler=sampler) as loader, how(loader) as other:
            assert (other.sampler.epoch, sampler.epoch) == (5, 5)
            assert numbers(other) == numbers(loader)

    @pytest.mark.parametrize("name", SAMPLERS)
    def test_in_the_middle_of_an_epoch_neither_moves_the_other(self, make, how, name):
        with make(100, sampler=SAMPLERS[name]()) as loader:
            wanted = [numbers(loader), numbers(loader)]
        with make(100, sampler=SAMPLERS[name]()) as loader:
            iterator = iter(loader)
            found = [next(iterator)]
            with how(loader) as other:
                found += iterator
                assert [numbers(found), numbers(loader)] == wanted
                assert [numbers(other), numbers(other)] == [wanted[0][1:], wanted[1]]
                assert other.dataset is loader.dataset or how is not copy.copy

    def test_an_epoch_that_is_over_and_asked_for_again_has_no_batch_left(self, make, how):
        with make(100, shuffle=True) as loader:
            list(loader)
            loader.load_state_dict({**loader.state_dict(), "epoch": 0, "position": 1000})
            loader.set_epoch(0)
            with how(loader) as other:
                assert (other.epoch, other.step) == (loader.epoch, loader.step) == (0, len(loader))
                assert (numbers(other), numbers(loader)) == ([], [])
                assert numbers(other) == numbers(loader) != []


class TestOneGenerator:
    """Other draws from the generator move it, as in torch; an epoch sets it back only from where the epoch itself left it."""

    @pytest.mark.parametrize("name", ["random", "random, 2.5 times", "with replacement"])
    def test_that_others_have_used_since_is_left_as_it_is(self, make, name):
        sampler = SAMPLERS[name]()
        with make(100, sampler=sampler) as loader:
            some(loader, 3)
            time.sleep(0.1)  # for what is drawn ahead
            torch.randperm(100, generator=sampler.generator)
            before = sampler.generator.get_state()
            loader.set_epoch(1)
            assert torch.equal(sampler.generator.get_state(), before)

    @pytest.mark.parametrize("name", ["random", "random, 2.5 times", "subset"])
    def test_that_is_seeded_once_a_state_is_loaded_stays_so(self, make, name):
        sampler, other = SAMPLERS[name](), SAMPLERS[name]()
        with make(100, sampler=SAMPLERS[name]()) as loader:
            some(loader, 2)
            state = loader.state_dict()
        with make(100, sampler=sampler) as loader, make(100, sampler=other) as fresh:
            loader.load_state_dict(state)
            for one in (sampler, other):
                one.generator.manual_seed(104)
            loader.set_epoch(1)
            assert numbers(loader) == numbers(fresh)

    @pytest.mark.parametrize("name", SAMPLERS)
    def test_that_goes_back_to_a_state_is_not_moved_by_the_epoch_that_was_left(self, make, name):
        with make(100, sampler=SAMPLERS[name]()) as loader:
            numbers(loader)
            state, wanted = loader.state_dict(), numbers(loader)
        with make(100, sampler=SAMPLERS[name]()) as loader:
            some(loader, 3)
            loader.load_state_dict(state)
            loader.set_epoch(1)
            assert numbers(loader) == wanted


def test_a_sampler_that_cannot_be_copied_is_shared(make):
    sampler = SAMPLERS["random"]()
    sampler.lock = threading.Lock()
    with make(100, sampler=sampler) as loader, copy.copy(loader) as other:
        assert other.sampler is sampler


def test_a_sampler_that_waits_holds_nobody_up(make):
    """Its thread may wait for what the consumer does next."""
    go_on = threading.Event()

    class Waiting(Own):
        def __iter__(self):
            for number, index in enumerate(super().__iter__()):
                if number == 500:
                    assert go_on.wait(20)
                yield index

    with make(100, sampler=Waiting()) as loader:
        _held = begin(loader)
        began = time.monotonic()
        loader.set_epoch(1)
        loader.state_dict()
        assert time.monotonic() - began < 10
        go_on.set()
