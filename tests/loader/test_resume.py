"""A loader resumes at every step, and refuses to where the rest would not be the rest of the same epoch."""

import json
from itertools import chain, islice

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

import gdsload
from gdsload import OptionError
from gdsload.testing import assert_resumes_everywhere, fingerprint
from tests.loader.conftest import write_plain
from tests.loader.taking import begin, check_refused, numbers


def blocks(block, window, lanes):
    return {"shuffle": gdsload.BlockShuffle(block=block, window=window, lanes=lanes)}


BLOCK = blocks(8, 50, 3)
ORDERS = [{"shuffle": False}, {"shuffle": True}, {"shuffle": "full"}, BLOCK]


@pytest.fixture
def make(plain):
    """Makes loaders of 25 samples a batch, 40 batches; the caller closes them."""

    def loader(batch_size=25, **options):
        return gdsload.DataLoader(plain, batch_size, device="cpu", **{"with_index": True, "seed": 9, **options})

    return loader


OTHER_BUDGETS = {"memory": gdsload.Memory(prefetch=900, arena="700KiB"), "mmap": False}


@pytest.mark.parametrize("order", [*ORDERS, {"drop_last": True, **BLOCK}], ids=str)
@pytest.mark.parametrize(
    ("begun", "resumed"), [({}, {}), ({"mmap": False}, {"mmap": False}), ({}, OTHER_BUDGETS)], ids=str
)
def test_it_resumes_at_every_step(make, order, begun, resumed):
    assert_resumes_everywhere(lambda: make(63, **begun, **order), lambda: make(63, **resumed, **order))


def test_every_field_is_resumed(rich):
    options = {"shuffle": gdsload.BlockShuffle(block=4, window=16, lanes=2), "device": "cpu"}
    assert_resumes_everywhere(lambda: gdsload.DataLoader(rich, 20, **options))


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 5), (5, 4)])
def test_another_world_size_goes_on_with_the_same_global_batches(make, order, before, after):
    def ranks(world, state=None):
        found = []
        for rank in range(world):
            with make(60 // world, ranks=(rank, world), **order) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                found.append((numbers(loader), loader.state_dict()))
        # What all ranks together get at each step.
        steps = zip(*(batches for batches, _ in found), strict=True)
        return [sorted(chain(*step)) for step in steps], found[0][1]

    through, end = ranks(before)
    following = ranks(before, end)[0]
    assert end == ranks(after)[1]
    with make(60 // before, ranks=(0, before), **order) as loader:
        for step, _ in enumerate(loader, 1):
            if step in (1, 2, 16, 17):
                assert ranks(after, loader.state_dict())[0] == (through[step:] or following)


def stopped(make, steps=1, **options):
    """The state after some steps, the samples that came before it, and those that would have come."""
    with make(**options) as loader:
        iterator = iter(loader)
        seen = numbers(islice(iterator, steps))
        return loader.state_dict(), list(chain(*seen)), list(chain(*numbers(iterator)))


class TestChangedBatchSize:
    """The position counts samples, so that a global batch of another size may begin there, too."""

    @pytest.mark.parametrize("order", ORDERS, ids=str)
    @pytest.mark.parametrize("tail", ["share", "pad", "drop"])
    @pytest.mark.parametrize("world", [1, 2])
    def test_the_rest_of_the_epoch_comes_once(self, make, order, tail, world):
        state, seen, rest = stopped(make, 3, batch_size=64, tail=tail, **order)
        found = []
        for rank in range(world):
            with make(48 // world, ranks=(rank, world), tail=tail, with_real=True, **order) as loader:
                loader.load_state_dict(state, change_batch_size=True)
                assert loader.state_dict()["global_batch"] == 48
                found += [index for batch in loader for index in batch["index"][batch["real"]].tolist()]
        assert len(set(found)) == len(found)
        if tail == "drop":  # of 1000 samples, 960 in global batches of both sizes
            assert sorted(found) == sorted(rest)
        else:
            assert sorted(found) == sorted(set(range(1000)) - set(seen))

    def test_it_is_asked_for_by_name(self, make):
        state, *_ = stopped(make, 3, batch_size=64)
        with make(48) as loader:
            check_refused(loader, state, r"pass `batch_size=64`; or .*load_state_dict\(state, change_batch_size=T")
            loader.load_state_dict(state, change_batch_size=True)
            assert next(iter(loader))["index"].tolist() == list(range(192, 240))

    @pytest.mark.parametrize("tail", ["share", "drop"])
    @pytest.mark.parametrize(
        ("steps", "ranks", "match"),
        [
            (3, (0, 1), "position 192 .*`batch_size=96` or `batch_size=192`, or .* position 100 or 200"),
            (3, (0, 2), "With 2 ranks, pass `batch_size=96`, or a state at position 0 or 200"),
            (15, (0, 1), "position 960 .*`batch_size=96` or `batch_size=120`, or a state at position 900 or 1000"),
            (1, (0, 7), "a state at position 0 or 700; 7 ranks share out no multiple of 7"),
        ],
        ids=str,
    )
    def test_a_position_that_does_not_fit_names_what_does(self, make, steps, ranks, tail, match):
        state, *_ = stopped(make, steps, batch_size=64, tail=tail)
        check_refused(make(100, tail=tail, ranks=ranks), state, match, change_batch_size=True)

    @pytest.mark.parametrize("batch_size", [1, 30, 1000])
    def test_an_epochs_begin_and_end_fit_all(self, make, batch_size):
        for steps, first in ((0, 0), (16, 1)):
            state, *_ = stopped(make, steps, batch_size=64)
            with make(batch_size) as loader:
                loader.load_state_dict(state, change_batch_size=True)
                assert loader.epoch == first
                assert next(iter(loader))["index"].tolist() == list(range(batch_size))

    def test_a_samplers_positions_are_batches(self, make):
        state, *_ = stopped(make, 3, batch_size=64, sampler=range(1000), seed=0)
        with make(48, sampler=range(1000), seed=0) as loader:
            match = "after 3 batches of a sampler, of another size.*between two epochs"
            check_refused(loader, state, match, change_batch_size=True)
            state, *_ = stopped(make, 0, batch_size=64, sampler=range(1000), seed=0)
            loader.load_state_dict(state, change_batch_size=True)
            assert next(iter(loader))["index"].tolist() == list(range(48))


class TestState:
    def test_it_is_small_and_plain(self, make, load, plain):
        state, *_ = stopped(make, **BLOCK)
        of_subset = load(Subset(gdsload.ShardDataset(plain), range(5, 900)), 10, "full").state_dict()
        assert max(len(json.dumps(state)), len(json.dumps(of_subset))) < 500
        assert state["epoch"] == 0
        assert state["position"] == 25

    def test_numbers_of_numpy_are_plain_in_it(self, make):
        order = {"shuffle": gdsload.BlockShuffle(block=np.int32(8), window=np.int64(40), lanes=np.uint8(2))}
        world = {"ranks": (np.int64(0), np.int64(2))}
        with make(np.int64(10), seed=np.uint64(2**63), **order, **world) as loader:
            next(iter(loader))
            assert json.loads(json.dumps(loader.state_dict())) == loader.state_dict()

    @pytest.mark.parametrize(("epoch", "left"), [(0, 0), (1, 40)])
    def test_behind_the_last_batch_nothing_is_left_of_the_epoch_if_it_is_asked_for(self, make, epoch, left):
        """As by a loop that counts epochs itself, or by Lightning, which goes on within the epoch of a checkpoint."""
        with make(shuffle="full") as loader, make(shuffle="full") as other:
            _held = begin(loader, 40)
            other.load_state_dict(loader.state_dict())
            other.set_epoch(epoch)
            assert other.epoch == epoch
            assert numbers(other) == (numbers(loader) if left else [])
            assert numbers(other) == numbers(loader)

    def test_it_sets_a_loader_in_use_back_and_stays_after_close(self, make):
        with make(shuffle="full") as loader:
            iterator = begin(loader)
            state = loader.state_dict()
            rest = numbers(iterator)
            for _ in range(2):
                loader.load_state_dict(state)
                assert numbers(loader) == rest
            assert loader.epoch == 1
            loader.load_state_dict(state)
        assert loader.state_dict() == state


class TestSetEpoch:
    def test_it_chooses_the_epoch(self, make):
        with make(shuffle="full") as loader:
            epochs = [numbers(loader) for _ in range(3)]
            assert loader.epoch == 3
            for epoch in (1, 2, 0):
                _left = begin(loader)
                loader.set_epoch(epoch)
                state = loader.state_dict()
                assert (loader.epoch, state["epoch"], state["position"]) == (epoch, epoch, 0)
                assert numbers(loader) == epochs[epoch]

    def test_the_same_epoch_keeps_a_resumed_place_and_another_does_not(self, make):
        with make() as loader:
            next(iter(loader))
            state = loader.state_dict()
            loader.load_state_dict(state)
            loader.set_epoch(0)
            assert loader.state_dict() == state
            loader.set_epoch(1)
            loader.set_epoch(0)
            assert loader.state_dict()["position"] == 0

    @pytest.mark.parametrize("epoch", [0, 2**64 - 1, np.int64(3), torch.tensor(4)])
    def test_any_whole_number_will_do(self, make, epoch):
        with make(shuffle="full") as loader:
            loader.set_epoch(epoch)
            next(iter(loader))
            assert loader.state_dict()["epoch"] == int(epoch)
            json.dumps(loader.state_dict())

    @pytest.mark.parametrize("given", [(7, 999), (7, -1), (-1,), (2**64,), (1.0,)])
    def test_a_refused_one_changes_nothing(self, make, given):
        with make() as loader:
            iterator = begin(loader)
            state = loader.state_dict()
            with pytest.raises(OptionError):
                loader.set_epoch(*given)
            assert loader.state_dict() == state
            next(iterator)


class TestRefused:
    @pytest.mark.parametrize(
        ("before", "after", "match"),
        [
            ({"seed": 1}, {"seed": 2}, "seed differs: it was 1, here it is 2.*Pass the same `seed`"),
            ({"shuffle": "full"}, {}, "order options differ.*'full'.*'sequential'.*Pass the same `shuffle`"),
            (blocks(8, 50, 3), blocks(9, 50, 3), "order options differ.*'block': 8.*'block': 9"),
            (blocks(8, 50, 3), blocks(8, 51, 3), "order options differ"),
            (blocks(8, 50, 3), blocks(8, 50, 4), "order options differ.*lanes"),
            ({"drop_last": True}, {}, "tail differs: it was 'drop', here it is 'share'.*Pass the same `tail`"),
            ({"batch_size": 60}, {"batch_size": 30}, "global batch.*it was 60, here it is 30.*pass `batch_size=60"),
            ({"batch_size": 60}, {"batch_size": 60, "ranks": (1, 4)}, "is 240. With 4 ranks, pass `batch_size=15"),
            ({"batch_size": 10}, {"batch_size": 10, "ranks": (0, 3)}, "world size that divides it"),
        ],
        ids=str,
    )
    def test_what_changes_the_order(self, make, before, after, match):
        check_refused(make(**after), stopped(make, **before)[0], match)

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (lambda a, _: a, lambda _, b: b),  # one value more or less
            (lambda a, _: a.select(range(4)), lambda a, _: a.select(range(1, 5))),
            (lambda a, _: a.select(range(4)), lambda a, _: a),
            (lambda a, b: ConcatDataset([a, b]), lambda a, b: ConcatDataset([b, a])),
        ],
    )
    def test_another_dataset(self, load, tmp_path, before, after):
        for name, value in (("a", 5), ("b", 6)):
            with gdsload.ShardWriter(tmp_path / name) as writer:
                writer.write_batch({"x": np.array([1, 2, 3, 4, value])})
        given = [gdsload.ShardDataset(tmp_path / name) for name in "ab"]
        state = load(before(*given)).state_dict()
        check_refused(load(after(*given)), state, "dataset is not the one.*same dataset, or start again")
        load(before(*given)).load_state_dict(state)

    def test_the_same_dataset_elsewhere_is_the_same(self, load, tmp_path):
        one, other = (load(write_plain(tmp_path / name, 100), 10, "full") for name in ("a", "b"))
        rest = begin(one)
        other.load_state_dict(one.state_dict())
        assert list(map(fingerprint, other)) == list(map(fingerprint, rest))

    def test_the_same_samples_are_the_same_however_they_are_listed(self, load, plain):
        dataset = gdsload.ShardDataset(plain)
        state = load(Subset(dataset, range(10))).state_dict()
        load(Subset(dataset, list(range(10)))).load_state_dict(state)

    @pytest.mark.parametrize(
        "junk",
        [
            None, 5, "state", [], {}, {"version": 2}, {"version": np.arange(3)}, {1: object()},
            {"version": torch.arange(2)}, b"state",
        ],
    )  # fmt: skip
    def test_what_is_no_state(self, make, junk):
        check_refused(make(), junk, "no state of a gdsload loader.*Pass what state_dict")

    @pytest.mark.parametrize(
        "change",
        [
            {"position": 24}, {"position": -25}, {"position": 1025}, {"position": "25"}, {"position": None},
            {"position": 25.0}, {"epoch": -1}, {"epoch": 2**64}, {"epoch": None}, {"epoch": True}, {"position": True},
        ],
        ids=str,
    )  # fmt: skip
    def test_a_place_that_is_none(self, make, change):
        check_refused(make(), {**stopped(make)[0], **change}, "cursor|position")

    def test_parts_that_are_junk_or_missing(self, make):
        state, *_ = stopped(make)
        for name in state:
            check_refused(make(), {key: state[key] for key in state if key != name}, "no state|no cursor|no '")
        for name in ("dataset", "samples", "seed", "order", "tail", "global_batch"):
            for junk in (None, "junk", -1, [], {"a": [1]}, np.arange(3)):
                check_refused(make(), {**state, name: junk}, "differ|not the one|another number|no state")
