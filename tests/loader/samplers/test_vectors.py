"""torch's samplers as vectors: the indices of torch's own iteration, and the generator's state at every moment."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

import gdsload
from gdsload.loader.samplers import Draws, vectors
from gdsload.loader.samplers.indices import IndexSource
from gdsload.loader.samplers.vectors import vectors_of
from gdsload.loader.state import Place


class Random(RandomSampler):
    """Whoever derives from a sampler may iterate otherwise."""


def made(kind, size, wanted, generator):
    if kind == "weighted":
        return WeightedRandomSampler([1.0 + number % 3 for number in range(size)], wanted, generator=generator)
    return RandomSampler(range(size), kind == "replacement", wanted, generator)


@pytest.fixture(autouse=True)
def global_state():
    with torch.random.fork_rng(devices=[]):
        yield


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(["random", "replacement", "weighted"]),
    st.integers(1, 200),
    st.integers(1, 500),
    st.lists(st.integers(1, 120), min_size=1, max_size=30),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_indices_and_states_are_torchs_however_many_are_asked_for(kind, size, wanted, counts, seeded, seed):
    def run(take_of):
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed) if seeded else torch.default_generator
        take = take_of(made(kind, size, wanted, generator if seeded else None))
        return [(take(count), generator.get_state().tolist()) for count in counts]

    def by_torch(sampler):
        iterator = iter(sampler)
        return lambda count: list(islice(iterator, count))

    def by_vectors(sampler):
        drawn = vectors_of(sampler)

        def take(count):
            found, error = drawn.take(count)
            assert error is None
            return found.tolist()

        return take

    assert run(by_vectors) == run(by_torch)


@pytest.mark.parametrize("size", [1, 31, 32, 33, 1000, 40_000, 2**17 + 1])
@pytest.mark.parametrize("kind", ["random", "replacement"])
def test_whole_passes_of_many_sizes(kind, size):
    for wanted in (None, size // 2 + 1, 2 * size, 2 * size + 5):
        one, other = (torch.Generator().manual_seed(size) for _ in range(2))
        found, error = vectors_of(made(kind, size, wanted, one)).take(10**9)
        assert error is None
        assert found.tolist() == list(made(kind, size, wanted, other))
        assert one.get_state().equal(other.get_state())


def test_no_permutation_is_drawn_in_vain(monkeypatch):
    """torch's own draws one more behind the last index; `test_whole_passes_of_many_sizes` compares the states."""
    real, asked = torch.randperm, []
    generator = torch.Generator().manual_seed(4)
    drawn = vectors_of(RandomSampler(range(1000), generator=generator))
    monkeypatch.setattr(torch, "randperm", lambda count, **options: asked.append(count) or real(count, **options))
    assert len(drawn.take(1000)[0]) == 1000
    between = generator.get_state()
    assert len(drawn.take(1)[0]) == 0
    assert asked == [1000]
    assert not generator.get_state().equal(between)


@pytest.mark.parametrize("why", ["a GPU's generator", "numbers of 64 bits"])
def test_a_permutation_is_drawn_in_vain_where_its_numbers_are_not_known(monkeypatch, why):
    class Generator:
        device = torch.device("cuda", 0)

        def get_state(self):
            return torch.zeros(16, dtype=torch.uint8)

    real, asked = torch.randperm, []
    sampler = RandomSampler(range(40), generator=torch.Generator())
    if why == "a GPU's generator":
        sampler.generator = Generator()
    else:
        monkeypatch.setattr(vectors, "_WIDE", 40)
    drawn = vectors_of(sampler)
    monkeypatch.setattr(torch, "randperm", lambda count, generator: asked.append(generator) or real(count))
    assert len(drawn.take(1000)[0]) == 40
    assert asked == [sampler.generator] * 2


@pytest.mark.parametrize("kind", ["random", "replacement", "weighted"])
@pytest.mark.parametrize("wanted", [1, 99, 128, 1000])
@pytest.mark.parametrize("drop_last", [True, False])
def test_batches_of_a_loader_are_torchs_epoch_after_epoch(plain, kind, wanted, drop_last):
    one, other = (torch.Generator().manual_seed(5) for _ in range(2))
    batches = BatchSampler(made(kind, 1000, wanted, one), 64, drop_last)
    assert vectors_of(batches) is not None
    expected = BatchSampler(made(kind, 1000, wanted, other), 64, drop_last)
    with gdsload.DataLoader(plain, batch_sampler=batches, device="cpu") as loader:
        for _ in range(3):
            assert [batch["x"][:, 0].tolist() for batch in loader] == list(expected)
            assert one.get_state().equal(other.get_state())
    with gdsload.DataLoader(plain, 64, sampler=batches.sampler, drop_last=drop_last, device="cpu") as loader:
        for _ in range(3):
            assert [batch["x"][:, 0].tolist() for batch in loader] == list(expected)


def test_only_torchs_own_types_are_drawn_so():
    class Batches(BatchSampler):
        pass

    assert vectors_of(RandomSampler(range(3))) is not None
    for other in (
        Random(range(3)), SequentialSampler(range(3)), BatchSampler(Random(range(3)), 2, False), range(3),
        Batches(RandomSampler(range(3)), 2, False), BatchSampler([1, 2], 2, False),
    ):  # fmt: skip
        assert vectors_of(other) is None


@settings(deadline=None, max_examples=200)
@given(
    st.integers(0, 60),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
    st.lists(st.integers(1, 30), min_size=1, max_size=8),
)
def test_shares_of_ranks_are_torchs(size, ranks, shuffle, drop_last, epoch, counts):
    """Also of fewer samples than ranks, and those that are there twice."""
    before = torch.get_rng_state()
    for rank in range(ranks):
        sampler = DistributedSampler(range(size), ranks, rank, shuffle, 7, drop_last)
        sampler.set_epoch(epoch)
        expected, found = iter(list(sampler)), vectors_of(sampler)
        for count in [*counts, 1000]:
            indices, error = found.take(count)
            assert error is None
            assert indices.tolist() == list(islice(expected, count))
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize("kind", [RandomSampler, WeightedRandomSampler, BatchSampler, DistributedSampler])
def test_a_torch_that_iterates_otherwise_is_iterated(plain, monkeypatch, kind):
    before = kind.__iter__
    monkeypatch.setattr(kind, "__iter__", lambda self: reversed(list(before(self))))
    vectors.as_in_torch.cache_clear()
    try:
        given_one = BatchSampler(RandomSampler(range(1000), generator=torch.Generator().manual_seed(1)), 64, False)
        assert vectors_of(given_one) is None
        with gdsload.DataLoader(plain, batch_sampler=given_one, device="cpu") as loader:
            found = [batch["x"][:, 0].tolist() for batch in loader]
        given_one.sampler.generator.manual_seed(1)
        assert found == list(given_one)
    finally:
        monkeypatch.undo()
        vectors.as_in_torch.cache_clear()


def test_finding_out_leaves_torchs_state_alone():
    vectors.as_in_torch.cache_clear()
    before = torch.get_rng_state()
    assert vectors.as_in_torch()
    assert torch.get_rng_state().equal(before)


def test_what_torch_raises_comes_out_at_its_batch(plain):
    with (
        gdsload.DataLoader(plain, 64, sampler=RandomSampler([], num_samples=5), device="cpu") as loader,
        pytest.raises(ZeroDivisionError),
    ):
        next(iter(loader))


@pytest.mark.parametrize(("drop_last", "length"), [(False, 24), (False, 0), (True, 3)])
def test_a_dataset_that_has_changed_its_length_is_torchs_error(drop_last, length):
    data = list(range(10))
    sampler = DistributedSampler(data, 2, 0, True, 7, drop_last)
    data[:] = range(length)
    assert vectors_of(sampler) is None
    with pytest.raises((AssertionError, ZeroDivisionError)):
        list(sampler)
    data[:] = range(10)
    assert vectors_of(sampler).take(99)[0].tolist() == list(sampler)


@pytest.mark.parametrize("steps", [1, 63, 64, 100, 130])
def test_how_far_is_drawn_hangs_on_the_step_reached_and_not_on_where_it_was_resumed(steps):
    """Or an epoch that is left half-way would be followed by others after a resume."""
    states = set()
    for begun_at in range(0, steps, 7):
        generator = torch.Generator().manual_seed(3)
        sampler = RandomSampler(range(500), True, 200_000, generator)
        draws = Draws(IndexSource(sampler, 1000, False, 500), None, None, Place(0, begun_at, None))
        for step in range(begun_at, steps):
            draws.reach(step)
        assert draws.steps == min(-(-steps // 65) * 65, 200)
        states.add(tuple(generator.get_state().tolist()))
    assert len(states) == 1


def test_draws_of_a_gpus_generator_are_made_one_by_one(monkeypatch):
    """Its numbers hang on how many are drawn at once."""
    asked = []

    class Generator:
        device = torch.device("cuda", 0)

        def get_state(self):
            return torch.zeros(16, dtype=torch.uint8)

    sampler = RandomSampler(range(500), True, 100, torch.Generator())
    sampler.generator = Generator()
    drawn = vectors_of(sampler)
    monkeypatch.setattr(
        torch, "randint", lambda *, high, size, dtype, generator: asked.append(size) or torch.zeros(size)
    )
    found, error = drawn.take(1000)
    assert (len(found), error) == (100, None)
    assert asked == [(32,), (32,), (32,), (4,)]
