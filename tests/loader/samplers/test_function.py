"""`sampler=` as a function of the epoch: its indices are the order that ranks share out, exact after every batch."""

import json
from itertools import chain, islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Subset

import gdsload
from gdsload import OptionError, SampleIndexError, StateError
from gdsload.testing import assert_resumes_everywhere
from tests.loader.taking import EXAMPLES, begin, noisy_sample, numbers, seeded


def drawn(epoch):
    """With replacement; later epochs are longer."""
    return torch.randint(1000, (150 + 20 * epoch,), generator=seeded(epoch))


def weighted(epoch):
    return torch.multinomial(torch.arange(1000.0), 200, replacement=True, generator=seeded(epoch))


class Callable:
    """As an object, which notes its calls."""

    def __init__(self, function=drawn):
        self.function, self.calls = function, []

    def __call__(self, epoch):
        self.calls.append(epoch)
        return self.function(epoch)


FUNCTIONS = {
    "with replacement": drawn,
    "weighted": weighted,
    "an array": lambda epoch: np.random.default_rng(epoch).permutation(1000)[:333],
    "int32": lambda epoch: torch.randperm(1000, generator=seeded(epoch), dtype=torch.int32)[::3],
    "uint16": lambda epoch: np.arange(epoch, 500, dtype=np.uint16)[::-1],
    "none at all": lambda _: torch.tensor([]),
    "one": lambda epoch: torch.tensor([epoch]),
    "an object": Callable(),
}


@pytest.fixture
def load_of(make):
    """Makes loaders of functions."""
    return lambda sampler, batch_size=16, **options: make(batch_size, sampler=sampler, **options)


class TestBatches:
    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_are_of_its_indices_epoch_after_epoch(self, load_of, name, mmap):
        function = FUNCTIONS[name]
        with load_of(function, mmap=mmap) as loader:
            for epoch in range(3):
                wanted = function(epoch).tolist()
                batches = list(loader)
                assert numbers(batches) == [wanted[low : low + 16] for low in range(0, len(wanted), 16)]
                assert all(batch["x"][:, 0].tolist() == batch["index"].tolist() for batch in batches)

    @EXAMPLES
    @given(
        indices=st.lists(st.integers(0, 999), max_size=120),
        batch_size=st.integers(1, 30),
        world_size=st.integers(1, 4),
        tail=st.sampled_from(["share", "pad", "drop"]),
    )
    def test_are_shared_out_as_an_order_is(self, load_of, indices, batch_size, world_size, tail):
        """Of a dataset in order the same places come to the same ranks."""
        for rank in range(world_size):
            options = {"tail": tail, "ranks": (rank, world_size), "with_real": True}
            with (
                load_of(lambda _: torch.tensor(indices), batch_size, **options) as loader,
                load_of(lambda _: torch.arange(len(indices)), batch_size, **options) as in_order,
            ):
                found, places = list(loader), list(in_order)
                assert numbers(found) == [[indices[place] for place in batch] for batch in numbers(places)]
                assert [batch["real"].tolist() for batch in found] == [batch["real"].tolist() for batch in places]
                assert len(loader) == len(found)

    def test_are_of_the_users_dataset(self, load, plain):
        dataset = gdsload.ShardDataset(plain)
        both = ConcatDataset([Subset(dataset, [5, 7, 9]), dataset.select(range(100, 200))])
        wanted = [5, 7, 9, *range(100, 200)]
        (batch,) = load(both, 500, sampler=lambda _: torch.tensor([102, 0, 3, 0]), with_index=True)
        assert batch["index"].tolist() == [102, 0, 3, 0]
        assert batch["x"][:, 0].tolist() == [wanted[index] for index in (102, 0, 3, 0)]
        (batch,) = load(gdsload.Windows(plain, 4, stride=3), 500, sampler=lambda _: np.array([331, 2, 2]))
        assert batch["x"][:, :, 0].tolist() == [[993, 994, 995, 996], [6, 7, 8, 9], [6, 7, 8, 9]]


class TestCalls:
    def test_one_for_each_epoch_whatever_is_asked(self, load_of):
        sampler = Callable()
        with load_of(sampler) as loader:
            assert sampler.calls == []
            for epoch in range(3):
                assert len(loader) == -(-(150 + 20 * epoch) // 16)
                for batch in loader:
                    assert len(batch["x"])
                    loader.state_dict()
                    assert (loader.epoch, loader.step, loader.remainder) == (epoch, 0, (150 + 20 * epoch) % 16)
                    if loader.state_dict()["position"] < 150:
                        assert len(loader) == -(-(150 + 20 * epoch) // 16)  # the next one may follow from this one
                        break
                loader.set_epoch(epoch)
                assert numbers(loader) == [one.tolist() for one in drawn(epoch).split(16)]
            assert sampler.calls == [0, 1, 2]

    def test_before_the_first_batch_in_the_consumers_thread(self, load_of):
        torch.manual_seed(3)
        wanted = torch.randperm(1000).tolist()
        torch.manual_seed(3)
        with load_of(lambda _: torch.randperm(1000)) as loader:
            assert list(chain(*numbers(loader))) == wanted

    def test_a_tensor_that_is_filled_for_each_epoch_is_copied(self, load_of):
        kept = torch.empty(200, dtype=torch.int64)

        def fill(epoch):
            return kept.copy_(torch.randperm(1000, generator=seeded(epoch))[:200])

        with load_of(fill, 10) as loader:
            older, newer = iter(loader), iter(loader)
            first = [next(older), next(newer)]
            assert numbers([first[0], *older]) == [one.tolist() for one in fill(0).clone().split(10)]
            assert numbers([first[1], *newer]) == [one.tolist() for one in fill(1).clone().split(10)]

    def test_what_can_be_iterated_is_iterated(self, load_of):
        class Both(list):
            def __call__(self, epoch):
                raise AssertionError(epoch)

        with load_of(Both([3, 1, 2])) as loader:
            assert numbers(loader) == [[3, 1, 2]]


class TestEpochs:
    def test_set_epoch_with_and_without_a_step(self, load_of):
        with load_of(drawn) as loader:
            for epoch, step in ((4, None), (1, 3), (9, 0), (0, 10)):
                loader.set_epoch(epoch, step)
                assert (loader.epoch, loader.step) == (epoch, step or 0)
                assert numbers(loader) == [one.tolist() for one in drawn(epoch).split(16)][step or 0 :]
            with pytest.raises(OptionError, match="step is 11, but the epoch has 10 steps"):
                loader.set_epoch(0, 11)
            loader.sampler.set_epoch(7)  # as frameworks do it
            assert loader.epoch == 7

    def test_two_at_once_of_different_lengths_draw_for_their_own_places(self, load_of):
        with load_of(drawn, sample_transform=noisy_sample) as loader:
            alone = [[batch["own"].tolist() for batch in loader] for _ in range(2)]
        with load_of(drawn, sample_transform=noisy_sample) as loader:
            older, newer = iter(loader), iter(loader)
            both = [next(older), next(newer)]
            assert [batch["own"].tolist() for batch in (both[1], *newer)] == alone[1]
            assert [batch["own"].tolist() for batch in (both[0], *older)] == alone[0]


class TestResume:
    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_at_every_step(self, load_of, name):
        assert_resumes_everywhere(
            lambda: load_of(FUNCTIONS[name]),
            lambda: load_of(FUNCTIONS[name], mmap=False, memory=gdsload.Memory(prefetch=900)),
        )

    @pytest.mark.parametrize("taken", [0, 1, 5, 9, 10])
    def test_with_other_ranks_and_another_batch_size(self, load_of, taken):
        with load_of(drawn) as loader:
            iterator = iter(loader)
            seen = list(chain(*numbers(islice(iterator, taken))))
            state = json.loads(json.dumps(loader.state_dict()))
        left = drawn(0).tolist()[len(seen) :] or drawn(1).tolist()
        rest = []
        for rank in range(2):
            with load_of(drawn, 8, ranks=(rank, 2)) as loader:
                loader.load_state_dict(state)
                rest.append(numbers(loader))
        shared = [list(chain(*both)) for both in zip(*rest, strict=True)]
        assert list(chain(*shared))[: len(left) // 16 * 16] == left[: len(left) // 16 * 16]
        assert set(chain(*shared)) == set(left)
        with load_of(drawn, 4) as loader:
            if taken < 10:
                loader.load_state_dict(state, change_batch_size=True)
                assert list(chain(*numbers(loader))) == left

    def test_other_indices_are_refused_in_the_middle_of_an_epoch(self, load_of):
        with load_of(drawn) as loader:
            between = loader.state_dict()
            _held = begin(loader)
            state = loader.state_dict()
        for other in (lambda epoch: drawn(epoch + 1), lambda epoch: drawn(epoch).flip(0), lambda _: torch.arange(150)):
            with load_of(other) as loader:
                with pytest.raises(StateError, match="does not give the indices again .* for epoch 0 .*seeded"):
                    loader.load_state_dict(state)
                assert loader.step == 0
                loader.load_state_dict(between)
                assert len(numbers(loader)) == len(loader) or loader.epoch == 1

    @pytest.mark.parametrize("sampler", [torch.arange(1000), range(1000), None])
    def test_a_state_of_anything_else_is_refused(self, load_of, sampler):
        with load_of(sampler) as one, load_of(drawn) as other:
            next(iter(one)), next(iter(other))
            for loader, state in ((one, other.state_dict()), (other, one.state_dict())):
                with pytest.raises(StateError, match="the order options differ"):
                    loader.load_state_dict(state)


class TestErrors:
    @pytest.mark.parametrize(
        ("gives", "kind", "match"),
        [
            (lambda _: [1, 2], OptionError, "gave, for epoch 0, a list, not indices in a tensor. Return a one-dim"),
            (lambda _: iter([1]), OptionError, "a list_iterator, not indices"),
            (lambda _: torch.randperm(9).view(3, 3), OptionError, r"of torch.int64 and shape \(3, 3\), not a row of"),
            (lambda _: torch.tensor(5), OptionError, r"shape \(\), not a row"),
            (lambda _: torch.rand(9), OptionError, "of torch.float32 and shape"),
            (lambda _: np.array([1, "a"], object), OptionError, "ndarray of object"),
            (lambda _: torch.ones(1000, dtype=torch.bool), OptionError, "a mask. .*mask.nonzero.*flatten"),
            (lambda _: torch.tensor([5, 1000]), SampleIndexError, "index 1000 at place 1, but the dataset .* 0 to 999"),
            (lambda _: torch.tensor([5, -1, 2000]), SampleIndexError, "index -1 at place 1, .*counted from 0"),
            (lambda _: np.array([2**64 - 1], "u8"), SampleIndexError, "index 18446744073709551615 at place 0"),
            (lambda _: next(iter(())), RuntimeError, "the sampler raised StopIteration for epoch 0"),
            (lambda _: 1 // 0, ZeroDivisionError, "by zero"),
            (lambda: 1, TypeError, "0 positional arguments but 1 was given"),
        ],
    )
    def test_come_with_the_first_batch_and_the_length(self, load_of, gives, kind, match):
        with load_of(gives) as loader:
            for ask in (lambda: list(loader), lambda: len(loader), lambda: list(loader)):
                with pytest.raises(kind, match=match):
                    ask()
            assert loader.epoch == 0

    def test_an_epoch_that_failed_is_begun_again(self, load_of):
        given = [None, torch.arange(40)]
        with load_of(lambda _: given.pop(0)) as loader:
            with pytest.raises(OptionError, match="NoneType"):
                next(iter(loader))
            assert list(chain(*numbers(loader))) == list(range(40))

    @pytest.mark.parametrize("again", [0, 55, 150])
    def test_another_number_of_indices_for_the_same_epoch(self, load_of, again):
        """Else the last batches would be empty, or indices would be left out."""
        counts = iter([100, 100, again])
        with load_of(lambda _: torch.arange(next(counts))) as loader:
            for epoch in (1, 0, 1):
                loader.set_epoch(epoch)
                assert len(loader) == 7
            with pytest.raises(OptionError, match=f"sampler gave {again} indices for epoch 1, and 100 when .*seeded"):
                next(iter(loader))
            assert len(list(chain(*numbers(loader)))) == again
