"""Batches by length: every sample once, within the budget, as many for each rank, and resumed anywhere."""

import json
from collections import Counter
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Subset, random_split
from torch.utils.data import DataLoader as TorchDataLoader

import gdsload
from gdsload import Field, LengthBuckets, OptionError, StateError, TokenBudget
from gdsload.loader.samplers.planned import PlannedSampler
from gdsload.testing import assert_resumes_everywhere
from tests.loader.taking import begin

SAMPLES = 1500


def write_tokens(path, lengths, shard_bytes="16KiB"):
    """Samples of so many tokens, each of them the sample's number."""
    schema = {"tokens": Field("int32", (None,)), "n": "int64", "t": "str"}
    with gdsload.ShardWriter(path, schema, shard_bytes=shard_bytes) as writer:
        numbers = np.arange(len(lengths))
        tokens = (np.repeat(numbers.astype(np.int32), lengths), np.cumsum([0, *lengths]))
        writer.write_batch({"tokens": tokens, "n": numbers, "t": ["é" * (number % 5) for number in numbers]})
    return path


@pytest.fixture(scope="module")
def lengths():
    random = np.random.default_rng(5)
    found = np.minimum(random.lognormal(3, 1, SAMPLES).astype(int), 200)
    found[[3, 900]] = 0
    return found


@pytest.fixture(scope="module")
def tokens(tmp_path_factory, lengths):
    return write_tokens(tmp_path_factory.mktemp("tokens") / "set", lengths)


MAKERS = {
    "sums": lambda data, **options: TokenBudget(data, "tokens", 400, **options),
    "padded": lambda data, **options: TokenBudget(data, "tokens", 400, padded=True, **options),
    "tight": lambda data, **options: TokenBudget(data, "tokens", 200, **options),
    "buckets": lambda data, **options: LengthBuckets(data, "tokens", 16, **options),
}


@pytest.fixture(params=MAKERS)
def make(request):
    return MAKERS[request.param]


def shares(sampler, world_size, epoch=0):
    """The batches of each rank, as lists of lists."""
    plans = [sampler.plan(epoch, window, world_size) for window in range(sampler.windows(world_size))]
    return [
        [plan.batch(step, rank).tolist() for plan in plans for step in range(len(plan))] for rank in range(world_size)
    ]


def within(sampler, batch):
    known = sampler.lengths[batch]
    if isinstance(sampler, LengthBuckets):
        return 0 < len(batch) <= sampler.batch_size
    cost = len(batch) * known.max() if sampler.padded else known.sum()
    return len(batch) > 0 and cost <= sampler.max_tokens


class TestPlan:
    @settings(derandomize=True, max_examples=50, suppress_health_check=list(HealthCheck))
    @given(
        lengths=st.lists(st.integers(0, 30), max_size=60),
        make=st.sampled_from([TokenBudget, partial(TokenBudget, padded=True), LengthBuckets]),
        most=st.integers(30, 90),
        world_size=st.integers(1, 20),
        epoch=st.integers(0, 1),
        options=st.fixed_dictionaries(
            {"window": st.none() | st.integers(1, 70), "shuffle": st.sampled_from([True, False, "block"])}
        ),
    )
    def test_every_sample_once_within_the_budget_in_equal_steps(
        self, tmp_path_factory, lengths, make, most, world_size, epoch, options
    ):
        folder = tmp_path_factory.mktemp("any") / "set"
        write_tokens(folder, np.array(lengths, int), "1KiB")
        most = most // 10 if make is LengthBuckets else most
        sampler = make(folder, "tokens", most, seed=3, **options)
        found = shares(sampler, world_size, epoch)
        assert len(found[0]) == sampler.steps(epoch, world_size)
        times = Counter(index for batches in found for batch in batches for index in batch)
        assert sorted(times) == list(range(len(lengths)))
        assert sum(times.values()) - len(lengths) < world_size
        assert len({len(batches) for batches in found}) == 1
        assert all(within(sampler, batch) for batches in found for batch in batches)
        # Before the last window none comes twice.
        whole = Counter(
            index
            for window in range(sampler.windows(world_size) - 1)
            for index in sampler.plan(epoch, window, world_size).ids
        )
        assert set(whole.values()) <= {1}

    def test_batches_are_full_and_alike(self, tokens, lengths):
        sampler = TokenBudget(tokens, "tokens", 400, padded=True, seed=1)
        (batches,) = shares(sampler, 1)
        real = sum(int(lengths[batch].sum()) for batch in batches)
        padded = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
        assert padded / len(batches) > 0.8 * 400
        assert real / padded > 0.8
        shuffled = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(1)).numpy()
        of_chance = [shuffled[low : low + 16] for low in range(0, SAMPLES, 16)]
        assert real / sum(len(batch) * int(lengths[batch].max()) for batch in of_chance) < 0.5

    def test_ranks_get_batches_that_are_alike_at_each_step(self, tokens, lengths):
        found = shares(TokenBudget(tokens, "tokens", 400, seed=1), 4)
        longest = np.array([[lengths[batch].max() for batch in batches] for batches in found])
        assert np.mean(longest.max(axis=0) - longest.min(axis=0)) < 0.25 * np.ptp(longest)

    def test_order_depends_on_seed_and_epoch_and_nothing_else(self, tokens, make):
        once = shares(make(tokens, seed=3), 2)
        assert shares(make(tokens, seed=3), 2) == once
        assert shares(make(tokens, seed=4), 2) != once
        assert shares(make(tokens, seed=3), 2, epoch=1) != once
        assert shares(make(tokens, shuffle=False, seed=3), 2) == shares(make(tokens, shuffle=False, seed=4), 2, epoch=1)

    def test_steps_come_in_a_random_order(self, tokens, lengths):
        (batches,) = shares(TokenBudget(tokens, "tokens", 400, window=SAMPLES), 1)
        longest = [lengths[batch].max() for batch in batches]
        falls = sum(one >= other for one, other in pairwise(longest))
        assert 0.3 * len(batches) < falls < 0.7 * len(batches)

    def test_a_window_is_samples_of_one_stretch_of_the_order(self, tokens):
        sampler = TokenBudget(tokens, "tokens", 400, window=100, shuffle=False)
        assert sampler.windows(1) == 15
        assert sorted(sampler.plan(0, 2, 1).ids.tolist()) == list(range(200, 300))
        assert sampler.windows(8) == 15  # of 104

    def test_buckets_have_one_size_but_at_the_end(self, tokens):
        found = shares(LengthBuckets(tokens, "tokens", 16, window=100), 3)
        sizes = [sorted(len(batches[step]) for batches in found) for step in range(len(found[0]))]
        last = -(-(SAMPLES % 144) // 48)
        assert [size for size in sizes if size != [16] * 3] == [size for size in sizes[-last:] if size != [16] * 3]

    def test_texts_by_their_bytes(self, tokens):
        assert TokenBudget(tokens, "t", 8).lengths.tolist() == [2 * (number % 5) for number in range(SAMPLES)]


class TestDatasets:
    def test_of_subsets_and_concatenations(self, load, tokens, lengths):
        dataset = gdsload.ShardDataset(tokens)
        some, _ = random_split(dataset, [0.5, 0.5], generator=torch.Generator().manual_seed(1))
        for part in (some, ConcatDataset([dataset, some]), Subset(some, range(5, 70)), dataset.select([7, 7, 1])):
            for shuffle in (True, False, "block"):
                sampler = TokenBudget(part, "tokens", 400, shuffle=shuffle)
                seen = []
                for batch in load(part, batch_sampler=sampler, ragged="offsets", with_index=True):
                    found = batch["tokens"][1].diff()
                    assert found.tolist() == lengths[batch["n"].numpy()].tolist()
                    assert found.sum() <= 400
                    seen += batch["index"].tolist()
                assert sorted(seen) == list(range(len(part)))

    def test_a_sample_that_does_not_fit_is_named_and_can_be_left_out(self, load, tokens, lengths):
        first, others = int(np.argmax(lengths > 150)), int((lengths > 150).sum()) - 1
        message = rf"max_tokens is 150, but sample {first} has {lengths[first]} rows of 'tokens', and {others} more"
        with pytest.raises(OptionError, match=rf"{message} have too many\. .*dataset\.select\("):
            TokenBudget(tokens, "tokens", 150)
        dataset = gdsload.ShardDataset(tokens)
        short = dataset.select(np.flatnonzero(dataset.lengths("tokens") <= 150))
        loader = load(short, batch_sampler=TokenBudget(short, "tokens", 150), fields=["n"])
        found = sorted(number for batch in loader for number in batch["n"].tolist())
        assert found == np.flatnonzero(lengths <= 150).tolist()

    def test_of_no_samples(self, load, tmp_path):
        write_tokens(tmp_path / "none", np.zeros(0, int))
        sampler = TokenBudget(tmp_path / "none", "tokens", 4)
        assert (len(sampler), list(sampler)) == (0, [])
        assert list(load(tmp_path / "none", batch_sampler=sampler)) == []


class TestLoader:
    @pytest.mark.parametrize("world_size", [1, 3])
    def test_it_gives_the_planned_batches_epoch_by_epoch(self, load, tokens, make, world_size):
        sampler = make(tokens, seed=3)
        for rank in range(world_size):
            loader = load(tokens, batch_sampler=sampler, fields=["n"], ranks=(rank, world_size))
            for epoch in (0, 1):
                assert len(loader) == sampler.steps(epoch, world_size)
                assert [batch["n"].tolist() for batch in loader] == shares(sampler, world_size, epoch)[rank]
            loader.set_epoch(7)
            assert [batch["n"].tolist() for batch in loader] == shares(sampler, world_size, 7)[rank]

    @pytest.mark.parametrize("options", [{}, {"window": 20}, {"shuffle": False}], ids=str)
    def test_it_resumes_at_every_step(self, load, tokens, make, options):
        part = Subset(gdsload.ShardDataset(tokens), range(100))

        def loader():
            return load(part, batch_sampler=make(part, seed=2, **{"window": 100, **options}), fields=["n"])

        assert isinstance(make(part), PlannedSampler)
        assert_resumes_everywhere(loader)

    def test_nothing_is_planned_again_before_the_place(self, load, tokens, monkeypatch):
        sampler = TokenBudget(tokens, "tokens", 400, window=100)
        loader = load(tokens, batch_sampler=sampler, fields=["n"])
        batches = begin(loader, 60)
        state = json.loads(json.dumps(loader.state_dict()))
        window = state["sampler"]["place"]["window"]
        assert window > 5
        planned, plan = [], TokenBudget.plan

        def noted(self, epoch, number, world_size):
            planned.append(number)
            return plan(self, epoch, number, world_size)

        monkeypatch.setattr(TokenBudget, "plan", noted)
        resumed = load(tokens, batch_sampler=TokenBudget(tokens, "tokens", 400, window=100), fields=["n"])
        resumed.load_state_dict(state)
        rest = [batch["n"].tolist() for batch in resumed]
        assert planned == list(range(window, 15))
        assert rest == [batch["n"].tolist() for batch in batches]

    @pytest.mark.parametrize("rank", [0, 2])
    def test_a_state_serves_every_rank(self, load, tokens, rank):
        sampler = TokenBudget(tokens, "tokens", 400, window=200)
        first = load(tokens, batch_sampler=sampler, fields=["n"], ranks=(1, 3))
        _held = begin(first, 5)
        other = load(tokens, batch_sampler=sampler, fields=["n"], ranks=(rank, 3))
        other.load_state_dict(first.state_dict())
        assert [batch["n"].tolist() for batch in other] == shares(sampler, 3)[rank][5:]

    def test_another_number_of_ranks_between_epochs_alone(self, load, tokens):
        sampler = TokenBudget(tokens, "tokens", 400)
        loader = load(tokens, batch_sampler=sampler, fields=["n"], ranks=(0, 2))
        batches = begin(loader)
        other = load(tokens, batch_sampler=sampler, fields=["n"], ranks=(0, 3))
        with pytest.raises(StateError, match=r"in the middle of an epoch that 2 ranks shared, and there are now 3"):
            other.load_state_dict(loader.state_dict())
        list(batches)
        other.load_state_dict(loader.state_dict())
        assert [batch["n"].tolist() for batch in other] == shares(sampler, 3, 1)[0]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"seed": 1}, "batch_sampler's seed was 0, and here it is 1"),
            ({"window": 77}, "batch_sampler's window was None, and here it is 77"),
            ({"padded": True}, "batch_sampler's padded was False"),
            ({"shuffle": False}, "batch_sampler's order was"),
            ({"max_tokens": 401}, "batch_sampler's max_tokens was 400, and here it is 401"),
        ],
    )
    def test_a_state_of_other_batches_is_refused(self, load, tokens, change, message):
        loader = load(tokens, batch_sampler=TokenBudget(tokens, "tokens", 400), fields=["n"])
        next(iter(loader))
        options = {"max_tokens": 400, **change}
        other = load(tokens, batch_sampler=TokenBudget(tokens, "tokens", **options), fields=["n"])
        with pytest.raises(StateError, match=message):
            other.load_state_dict(loader.state_dict())

    @pytest.mark.parametrize(
        "place", [None, 3, {}, {"world_size": 1, "window": -1, "step": 0}, {"world_size": 1, "window": 0, "step": "0"}]
    )
    def test_a_place_that_is_none_is_refused(self, load, tokens, place):
        loader = load(tokens, batch_sampler=TokenBudget(tokens, "tokens", 400), fields=["n"])
        next(iter(loader))
        state = loader.state_dict()
        state["sampler"]["place"] = place
        with pytest.raises(StateError, match="is no place in an epoch"):
            loader.load_state_dict(state)

    def test_a_state_of_another_sampler_is_refused(self, load, tokens):
        one = load(tokens, sampler=list(range(SAMPLES)), fields=["n"])
        other = load(tokens, batch_sampler=TokenBudget(tokens, "tokens", 400), fields=["n"])
        for loader, state in ((one, other.state_dict()), (other, one.state_dict())):
            with pytest.raises(StateError, match="a sampler of another kind"):
                loader.load_state_dict(state)

    def test_ranks_are_those_of_the_process_group(self, load, tokens, join):
        sampler = TokenBudget(tokens, "tokens", 400)
        loader = load(tokens, batch_sampler=sampler, fields=["n"])
        join(1, 3)
        assert len(loader) == sampler.steps(0, 3)
        assert [batch["n"].tolist() for batch in loader] == shares(sampler, 3)[1]
        assert [batch.tolist() for batch in sampler] == shares(sampler, 3)[1]


class TestAlone:
    def test_it_is_iterated_like_torchs_samplers(self, tokens):
        sampler = TokenBudget(tokens, "tokens", 400, seed=2)
        assert [batch.tolist() for batch in sampler] == [batch.tolist() for batch in sampler] == shares(sampler, 1)[0]
        assert len(sampler) == len(shares(sampler, 1)[0])
        sampler.set_epoch(3)
        assert [batch.tolist() for batch in sampler] == shares(sampler, 1, 3)[0]

    def test_torchs_loader_takes_it(self, tokens):
        dataset = gdsload.ShardDataset(tokens)
        sampler = TokenBudget(dataset, "tokens", 400)
        loader = TorchDataLoader(dataset, batch_sampler=sampler, collate_fn=lambda batch: [one["n"] for one in batch])
        assert [[int(one) for one in batch] for batch in loader] == shares(sampler, 1)[0]
