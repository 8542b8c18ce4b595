"""Where one epoch of a sampler ends and the next begins: behind its last batch, and behind one that was left."""

from __future__ import annotations

import json
import threading
import time
from itertools import count

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler

import gdsload
from gdsload import StateError
from gdsload.loader.samplers import Draws
from gdsload.loader.samplers.indices import IndexSource
from gdsload.loader.state import Place
from gdsload.testing import assert_resumes_everywhere
from tests.loader.samplers.test_samplers import ALL, RollsOver, Stateful, numbers, of_torch, seeded
from tests.loader.taking import begin
from tests.pools import no_threads


@pytest.fixture
def make(plain):
    """Makes loaders that give the samples' indices; the caller closes them."""
    return lambda batch_size=1, **options: gdsload.DataLoader(
        plain, batch_size, device="cpu", with_index=True, **options
    )


@pytest.mark.parametrize("size", [40, 63, 300, 500])
@pytest.mark.parametrize("sampler", [Stateful, RollsOver])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_state_behind_the_last_batch_goes_on_with_the_next_epoch(make, sampler, size, drop_last):
    """Also if a batch could not be filled, and some samplers stood at the next epoch's begin already."""
    ways = (
        lambda: {"sampler": sampler(), "batch_size": size, "drop_last": drop_last},
        lambda: {"batch_sampler": BatchSampler(sampler(), size, drop_last)},
    )
    for way in ways:
        state = None
        with make(**way()) as loader:
            for _ in loader:
                state = json.loads(json.dumps(loader.state_dict()))
            wanted = numbers(loader)
        with make(**way()) as loader:
            if state is not None:
                loader.load_state_dict(state)
                assert loader.state_dict() == state
            assert loader.epoch == (state is not None)
            assert numbers(loader) == wanted
            assert loader.epoch == 1 + (state is not None)
        with make(**way()) as loader:
            if state is not None:
                loader.load_state_dict(state)
                loader.set_epoch(0)
                assert numbers(loader) == []
            assert loader.epoch == (state is not None)
            assert numbers(loader) == wanted


def test_a_generator_that_is_seeded_anew_stays_so(make):
    generator = seeded(1)
    with make(100, sampler=RandomSampler(ALL, generator=generator)) as loader:
        next(iter(loader))
        generator.manual_seed(9)
        wanted = of_torch(sampler=RandomSampler(ALL, generator=seeded(9)), batch_size=100)[0]
        assert numbers(loader) == wanted


@pytest.mark.parametrize("seed", [1, 9])
@pytest.mark.parametrize("call", [2, 3])
def test_so_does_one_that_is_seeded_while_batches_are_drawn_ahead(make, monkeypatch, seed, call):
    generator, calls, done = seeded(1), count(1), threading.Event()
    checked = IndexSource.checked

    def seeds(source, given):
        if next(calls) == call:
            generator.manual_seed(seed)
            done.set()
        return checked(source, given)

    monkeypatch.setattr(IndexSource, "checked", seeds)
    with make(100, sampler=RandomSampler(ALL, generator=generator)) as loader:
        iterator = begin(loader)
        assert done.wait(10)
        del iterator  # or it would draw on from the same generator
        wanted = of_torch(sampler=RandomSampler(ALL, generator=seeded(seed)), batch_size=100)[0]
        assert numbers(loader) == wanted


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("before", ["nothing", "an epoch", "a state", "a state at the end"])
@pytest.mark.parametrize("sampler", [Stateful, RollsOver, lambda: RandomSampler(ALL, generator=seeded())])
def test_an_epoch_that_could_not_begin_begins_where_it_was_to(make, sampler, before, error):
    """Though its first batch has been drawn: here, and where the state is loaded that was taken behind the failure."""

    with make(10, sampler=sampler()) as loader:
        epochs, state = [[], []], None
        for epoch in epochs:
            for batch in loader:
                epoch.append(batch["index"].tolist())
                if epoch is epochs[0] and (before == "a state at the end" or len(epoch) == 4):
                    state = json.loads(json.dumps(loader.state_dict()))
    left = {"nothing": epochs[0], "a state": epochs[0][4:]}.get(before, epochs[1])
    with make(10, sampler=sampler()) as loader:
        if before == "an epoch":
            numbers(loader)
        elif before != "nothing":
            loader.load_state_dict(state)
        with no_threads(error):
            for _ in range(2):
                with pytest.raises(type(error)):
                    next(iter(loader))
        behind, found = json.loads(json.dumps(loader.state_dict())), numbers(loader)
    if sampler in (Stateful, RollsOver) or before == "a state":  # another generator's numbers are gone
        assert found == left
    with make(10, sampler=sampler()) as loader:
        loader.load_state_dict(behind)
        assert numbers(loader) == found


@pytest.mark.parametrize("sampler", [Stateful, lambda: RandomSampler(ALL, generator=seeded())])
def test_a_state_behind_an_epoch_that_could_not_begin_is_that_of_the_one_before(make, sampler):
    with make(10, sampler=sampler()) as loader:
        wanted = numbers(loader)
    with make(10, sampler=sampler()) as loader:
        iterator = iter(loader)
        assert numbers([next(iterator) for _ in range(3)]) == wanted[:3]
        del iterator
        with no_threads(KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
            next(iter(loader))
        state = json.loads(json.dumps(loader.state_dict()))
        assert len(numbers(loader)) == len(wanted)
    with make(10, sampler=sampler()) as loader:
        loader.load_state_dict(state)
        assert numbers(loader) == wanted[3:]


@pytest.mark.parametrize("sampler", [RollsOver, lambda: RandomSampler(ALL, generator=seeded())])
def test_the_consumer_may_step_back_by_one(sampler):
    """Where Ctrl-C strikes between the last step of a batch and the hands that were to get it."""
    given, place = sampler(), Place(0, 0, None)
    draws = Draws(IndexSource(given, 10, False, 1000), given if sampler is RollsOver else None, {"begin": {}}, place)
    marks = []
    for place.step in range(20):
        draws.reach(place.step)
        marks.append(draws.mark())
    assert draws.kept <= 2 or sampler is not RollsOver
    place.step -= 1
    assert draws.mark() == marks[-2]


class Slow(RollsOver):
    """Takes its time, so that it is still being drawn from when it is set back."""

    def __iter__(self):
        for index in super().__iter__():
            time.sleep(1e-4)
            yield index


@pytest.mark.parametrize("sampler", [Slow, lambda: RandomSampler(ALL, generator=seeded())], ids=["state", "generator"])
def test_a_state_is_loaded_while_an_older_iterator_is_alive(make, sampler):
    with make(10, sampler=sampler()) as loader:
        wanted = numbers(loader)
    with make(10, sampler=sampler()) as loader:
        iterator = iter(loader)
        assert numbers([next(iterator) for _ in range(3)]) == wanted[:3]
        state = json.loads(json.dumps(loader.state_dict()))
        assert numbers([next(iterator) for _ in range(3)]) == wanted[3:6]
        loader.load_state_dict(state)
        time.sleep(0.01)
        assert numbers(loader) == wanted[3:]
        assert list(iterator) == []


CHANGED = {
    "drop_last": [
        {"batch_sampler": BatchSampler(RandomSampler(ALL, generator=seeded()), 30, last)} for last in (False, True)
    ],
    "samples": [{"sampler": RandomSampler(ALL, num_samples=number, generator=seeded())} for number in (100, 50)],
    "samples, with replacement": [
        {"sampler": RandomSampler(ALL, replacement=True, num_samples=number, generator=seeded())}
        for number in (100, 500)
    ],
    "a list": [{"sampler": list(range(number))} for number in (50, 100)],
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_sampler_of_another_length_does_not_go_on_in_the_middle(make, name):
    before, after = CHANGED[name]
    with make(**{"batch_size": 10, **before} if "sampler" in before else before) as loader:
        iterator = begin(loader, 2)
        state = loader.state_dict()
        assert len(list(iterator)) == len(loader) - 2
    with make(**{"batch_size": 10, **after} if "sampler" in after else after) as loader:
        with pytest.raises(gdsload.StateError, match="batches, not"):
            loader.load_state_dict(state)
        assert len(numbers(loader)) == len(loader)


class Uneven(Stateful):
    """Batches of the user's, of at most `batch_size` samples."""

    batch_size, length = 16, 40

    def __iter__(self):
        for index in super().__iter__():
            yield [index] * (1 + index % 16)


def test_short_batches_of_the_users_own_are_no_end(make):
    assert_resumes_everywhere(lambda: make(batch_sampler=Uneven()))


def weighted(rank):
    generator = torch.Generator().manual_seed(rank)
    return torch.utils.data.WeightedRandomSampler(torch.ones(1000), 200, generator=generator)


class TestOtherRanks:
    """A sampler's state is that of one rank, and says of which."""

    def state(self, make, steps, sampler):
        with make(10, sampler=sampler) as loader:
            _held = begin(loader, steps)
            return json.loads(json.dumps(loader.state_dict()))

    @pytest.mark.parametrize(
        ("sampler", "steps", "there"),
        [
            *((weighted, steps, there) for steps in (0, 3) for there in ((1, 2), (0, 4))),
            (lambda _: list(range(900)), 3, (1, 2)),  # in the middle of an epoch that of any
            (lambda _: Stateful(), 3, (1, 2)),
        ],
    )
    def test_it_is_refused_there(self, make, join, sampler, steps, there):
        join(0, 2)
        state = self.state(make, steps, sampler(0))
        assert (state["rank"], state["world_size"]) == (0, 2)
        join(*there)
        with make(10, sampler=sampler(1)) as loader:
            before = loader.state_dict()
            found = (
                rf"the sampler of rank 0 of 2, and this is rank {there[0]} of {there[1]}.*Save and load a state in each"
            )
            with pytest.raises(StateError, match=found):
                loader.load_state_dict(state)
            assert loader.state_dict() == before

    def test_between_two_epochs_of_a_function_of_them_it_serves_all(self, make, join):
        """As rank 0 saves it at an epoch's end, and all load it."""

        def sampler():
            return torch.utils.data.DistributedSampler(range(1000), shuffle=True)

        join(0, 2)
        state = self.state(make, 0, sampler())
        join(1, 4)
        with make(10, sampler=sampler()) as loader:
            loader.load_state_dict(state)
            assert len(numbers(loader)) == 25

    def test_who_says_that_it_serves_all_is_believed(self, make, join):
        join(0, 2)
        state = self.state(make, 3, list(range(900)))
        join(1, 2)
        with make(10, sampler=list(range(900))) as loader:
            loader.load_state_dict({name: value for name, value in state.items() if name not in ("rank", "world_size")})
            assert numbers(loader)[0] == list(range(30, 40))
