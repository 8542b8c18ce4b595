"""The end of one epoch of a sampler and the begin of the next: after its last batch, and after one that was left."""

import json
import threading
import time
from itertools import count

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, WeightedRandomSampler

from gdsload.loader.samplers.indices import IndexSource
from gdsload.testing import assert_resumes_everywhere
from tests.loader.samplers.test_samplers import ALL, RollsOver, Stateful, numbers, of_torch
from tests.loader.taking import begin, check_refused, seeded
from tests.pools import no_threads


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
        if state is None:  # of no batches
            continue
        for again in (False, True):
            with make(**way()) as loader:
                loader.load_state_dict(state)
                assert (loader.state_dict(), loader.epoch) == (state, 1)
                if again:
                    loader.set_epoch(0)
                    assert numbers(loader) == []
                assert (numbers(loader), loader.epoch) == (wanted, 2)


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
    """Though its first batch has been drawn: here, and where the state is loaded that was taken after the failure."""

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


def drawn(count, **options):
    return {"sampler": RandomSampler(ALL, num_samples=count, generator=seeded(), **options), "batch_size": 10}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        [{"batch_sampler": BatchSampler(drawn(1000)["sampler"], 30, last)} for last in (False, True)],
        (drawn(100), drawn(50)),
        (drawn(100, replacement=True), drawn(500, replacement=True)),
        [{"sampler": range(count), "batch_size": 10} for count in (50, 100)],
    ],
    ids=["drop_last", "samples", "samples, with replacement", "a range"],
)
def test_a_sampler_of_another_length_does_not_go_on_in_the_middle(make, before, after):
    with make(**before) as loader:
        iterator = begin(loader, 2)
        state = loader.state_dict()
        assert len(list(iterator)) == len(loader) - 2
    with make(**after) as loader:
        check_refused(loader, state, "batches, not")
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
    return WeightedRandomSampler(torch.ones(1000), 200, generator=seeded(rank))


class TestOtherRanks:
    """A sampler's state is that of one rank, and says of which."""

    def state(self, make, steps, sampler):
        with make(10, sampler=sampler) as loader:
            _held = begin(loader, steps)
            return json.loads(json.dumps(loader.state_dict()))

    @pytest.mark.parametrize(
        ("sampler", "steps"),
        [
            (weighted, 0),
            (weighted, 3),
            (lambda _: list(range(900)), 3),  # in the middle of an epoch that of any
            (lambda _: Stateful(), 3),
        ],
    )
    @pytest.mark.parametrize("there", [(1, 2), (0, 4)])
    def test_it_is_refused_there(self, make, join, sampler, steps, there):
        join(0, 2)
        state = self.state(make, steps, sampler(0))
        assert (state["rank"], state["world_size"]) == (0, 2)
        join(*there)
        with make(10, sampler=sampler(1)) as loader:
            here = "rank {} of {}".format(*there)
            check_refused(loader, state, rf"rank 0 of 2, and this is {here}.*Save and load a state in each")

    def test_between_two_epochs_of_a_function_of_them_it_serves_all(self, make, join):
        """As rank 0 saves it at an epoch's end, and all load it."""
        join(0, 2)
        state = self.state(make, 0, DistributedSampler(ALL))
        join(1, 4)
        with make(10, sampler=DistributedSampler(ALL)) as loader:
            loader.load_state_dict(state)
            assert len(numbers(loader)) == 25

    def test_who_says_that_it_serves_all_is_believed(self, make, join):
        join(0, 2)
        state = self.state(make, 3, list(range(900)))
        join(1, 2)
        with make(10, sampler=list(range(900))) as loader:
            loader.load_state_dict({name: value for name, value in state.items() if name not in ("rank", "world_size")})
            assert numbers(loader)[0] == list(range(30, 40))
