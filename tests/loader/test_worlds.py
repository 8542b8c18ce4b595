"""Rank and world size come from torch.distributed when an epoch begins, where nothing else was said."""

import gc
import weakref
from itertools import islice

import pytest
import torch.distributed as dist

from gdsload import OptionError, StateError
from tests.loader.taking import begin, numbers

NO_GROUP = r"WORLD_SIZE is 4 in the environment, but torch\.distributed is not initialised.*init_process_group.*ranks="


def test_a_loader_made_before_the_group_is_that_of_one_made_after_it(load, plain, join, order, mmap):
    options, keys = {"with_index": True, "mmap": mmap, **order}, lambda _, generator: generator.initial_seed()
    before, asked = load(plain, 10, **options), load(plain, 10, **options)
    assert len(asked) == 100  # of one process, and nothing is remembered of that
    transformed = load(plain, 10, device_transform=keys, **order)
    join()
    after = load(plain, 10, **options)
    assert len(before) == len(asked) == len(after) == 34
    expected = numbers(after)
    assert numbers(before) == numbers(asked) == expected
    assert before.state_dict() == after.state_dict()
    assert after.state_dict()["global_batch"] == 30
    assert list(transformed) == list(load(plain, 10, device_transform=keys, **order))


def test_an_epoch_asks_anew(load, plain, join):
    loader = load(plain, 10, with_index=True)
    alone = numbers(loader)
    join(0, 2)
    halves = [numbers(loader)]
    join(1, 2)
    halves.append(numbers(loader))
    assert [first + second for first, second in zip(*halves, strict=True)] == [
        first + second for first, second in zip(alone[::2], alone[1::2], strict=True)
    ]


class TestAWorldThatChanges:
    @pytest.mark.parametrize(("before", "after", "batches"), [(None, (1, 3), 34), ((0, 2), (0, 5), 20)])
    def test_ends_what_began_before_it(self, load, plain, join, before, after, batches):
        if before:
            join(*before)
        loader = load(plain, 10)
        iterator = begin(loader)
        join(*after)
        began, now = (f"rank {rank} of {world_size}" for rank, world_size in (before or (0, 1), after))
        for _ in range(2):
            with pytest.raises(OptionError, match=f"began as {began}, and this process is now {now}"):
                next(iterator)
        assert len(loader) == len(list(loader)) == batches

    def test_an_older_epoch_is_still_refused_when_a_newer_one_has_begun(self, load, plain, join):
        loader = load(plain, 10)
        older = begin(loader)
        join()
        next(iter(loader))
        with pytest.raises(OptionError, match="began as rank 0 of 1"):
            next(older)

    def test_a_group_that_is_gone_before_the_first_epoch_shares_nothing_out(self, load, plain, join):
        join()
        loader = load(plain, 10)
        dist.destroy_process_group()
        assert len(loader) == len(list(loader)) == 100

    @pytest.mark.parametrize(("options", "first"), [({}, 40), ({"ranks": (0, 1)}, 10)])
    def test_another_group_of_the_same_kind_is_no_change_and_what_was_passed_does_not(
        self, load, plain, join, options, first
    ):
        join()
        iterator = begin(load(plain, 10, with_index=True, **options))
        join(*(2, 4) if options else ())
        assert next(iterator)["index"].tolist() == list(range(first, first + 10))

    @pytest.mark.parametrize("batches", [5, None])
    def test_the_state_can_be_taken_when_the_group_is_gone(self, load, plain, join, monkeypatch, batches):
        join()
        loader = load(plain, 10)
        iterator = iter(loader)
        list(islice(iterator, batches))
        state = loader.state_dict()
        dist.destroy_process_group()
        if batches:
            assert len(loader) == 100  # of a new epoch
            assert loader.state_dict() == state
        monkeypatch.setenv("WORLD_SIZE", "3")
        assert loader.state_dict() == state
        loader.close()
        assert loader.state_dict() == state

    def test_a_group_that_is_gone_is_held_by_nobody(self, load, plain, join):
        """A new one would hang: its processes would look for each other at the addresses of before."""
        join()
        loader = load(plain, 10)
        iterator = begin(loader)
        group = weakref.ref(dist.group.WORLD)
        dist.destroy_process_group()
        gc.collect()
        assert group() is None
        with pytest.raises(OptionError, match="this process is now rank 0 of 1"):
            next(iterator)
        assert len(loader) == 100

    @pytest.mark.parametrize("steps", [0, 3])
    def test_a_state_is_still_that_of_the_epoch_when_it_begins(self, load, plain, join, steps):
        """Taken with global batches of 30; three ranks of 30 would go on with 90, and step 3 is where one begins."""
        first = load(plain, 30)
        iterator = iter(first)
        list(islice(iterator, steps))
        loader = load(plain, 30, with_index=True)
        loader.load_state_dict(first.state_dict())
        join()
        with pytest.raises(StateError, match="it was 30, here it is 90. With 3 ranks, pass `batch_size"):
            next(iter(loader))
        loader.set_epoch(1)
        assert next(iter(loader))["index"].tolist() == list(range(30, 60))


class TestLaunchedWithoutAGroup:
    """As by torchrun, above `init_process_group`: all ranks would train on the same batches."""

    @pytest.fixture(autouse=True)
    def launched(self, monkeypatch):
        monkeypatch.setenv("WORLD_SIZE", "4")
        monkeypatch.setenv("RANK", "1")

    @pytest.mark.parametrize("ask", [len, lambda loader: next(iter(loader)), lambda loader: loader.state_dict()])
    def test_it_is_refused(self, load, plain, ask):
        with pytest.raises(OptionError, match=NO_GROUP):
            ask(load(plain, 10))

    def test_nothing_is_lost_by_that(self, load, plain, join):
        loader = load(plain, 10, with_index=True)
        with pytest.raises(OptionError, match=NO_GROUP):
            next(iter(loader))
        join()
        assert next(iter(loader))["index"].tolist() == list(range(10, 20))
        assert loader.state_dict()["epoch"] == 0

    @pytest.mark.parametrize("options", [{"ranks": (0, 1)}, {"sampler": range(1000)}])
    def test_but_not_where_the_samples_were_chosen(self, load, plain, options):
        assert len(load(plain, 10, **options)) == len(list(load(plain, 10, **options))) == 100

    @pytest.mark.parametrize("size", ["1", "", "many"])
    def test_nor_alone(self, load, plain, monkeypatch, size):
        monkeypatch.setenv("WORLD_SIZE", size)
        assert len(list(load(plain, 10))) == 100
