"""Samplers: the batches that torch's loader makes with them, resumed at every step, and errors in their place."""

import itertools
import json
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as TorchDataLoader

import gdsload
from gdsload import LoaderClosedError, Memory, OptionError, SampleIndexError, StateError
from gdsload.loader.samplers import sampled
from gdsload.loader.samplers.draws import Draws
from gdsload.testing import RecordingBackend, assert_resumes_everywhere
from tests.loader.taking import EXAMPLES, begin, check_refused, collect, seeded

ALL = range(1000)


class Own:
    """A user's sampler, shuffled by a function of its epoch."""

    epoch, length = 0, 300

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for number in range(self.length):
            yield number * 7 * (self.epoch + 1) % 1000

    def __len__(self):
        return self.length


class Stateful(Own):
    """Keeps its place as the samplers of torchdata do: a state from its end ends once more."""

    def __init__(self):
        self.yielded, self.skip = 0, None

    def __iter__(self):
        self.yielded, self.skip = self.skip or 0, None
        for index in itertools.islice(super().__iter__(), self.yielded, None):
            self.yielded += 1
            yield index

    def state_dict(self):
        return {"yielded": self.yielded, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.skip, self.epoch = state["yielded"], state["epoch"]


class RollsOver(Own):
    """Keeps its place in one state that is changed in place: one from its end is that of a new begin."""

    def __init__(self):
        self.state = {"next": 0}

    def __iter__(self):
        while self.state["next"] < 300:
            self.state["next"] += 1
            yield self.state["next"] * 3
        self.state["next"] = 0

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = dict(state)


def random_order():
    return RandomSampler(ALL, generator=seeded())


RESUMABLE = {
    "sequential": lambda: SequentialSampler(ALL),
    "random": random_order,
    "random, 2.5 times": lambda: RandomSampler(ALL, num_samples=2500, generator=seeded()),
    "with replacement": lambda: RandomSampler(ALL, replacement=True, num_samples=777, generator=seeded()),
    "weighted": lambda: WeightedRandomSampler(torch.arange(1000.0), 500, generator=seeded()),
    "subset": lambda: SubsetRandomSampler(range(100, 400), generator=seeded()),
    "distributed": lambda: DistributedSampler(ALL, 3, 1, seed=5),
    "distributed, in order": lambda: DistributedSampler(ALL, 3, 2, shuffle=False, drop_last=True),
    "own, with an epoch": Own,
    "own, with a state": Stateful,
    "own, with a state that rolls over": RollsOver,
    "a tensor": lambda: torch.randperm(1000, generator=seeded()),
    "a tensor of int32": lambda: torch.randperm(500, generator=seeded(), dtype=torch.int32),
    "a strided array": lambda: np.arange(2000, dtype=np.uint16)[::-2] // 2,
    "a list": lambda: [5, 999, 0, 5] * 50,
    "a range": lambda: range(900, 100, -3),
    "none at all": lambda: torch.zeros(0, dtype=torch.int64),
}
BATCHES = {
    "batches": lambda: BatchSampler(random_order(), 50, drop_last=False),
    "full batches": lambda: BatchSampler(random_order(), 63, drop_last=True),
    "batches with a state": lambda: BatchSampler(Stateful(), 31, drop_last=False),
    "batches with a state that rolls over": lambda: BatchSampler(RollsOver(), 31, drop_last=False),
    "full batches with a state that rolls over": lambda: BatchSampler(RollsOver(), 31, drop_last=True),
    "batches with an epoch": lambda: BatchSampler(DistributedSampler(ALL, 4, 0), 31, drop_last=True),
    "lists of any length": lambda: [[1, 2, 3], [4], [5] * 100, [6, 7]],
    "tensors and tuples": lambda: [torch.arange(9), (7, np.int8(3)), np.arange(50, dtype=np.int16), range(3)],
    "rows of a tensor": lambda: torch.arange(60).view(12, 5),
}


def of_torch(epochs=1, **options):
    """The batches of torch's loader, as lists of indices."""
    loader = TorchDataLoader(ALL, collate_fn=lambda batch: [int(index) for index in batch], **options)
    return [list(loader) for _ in range(epochs)]


def numbers(loader):
    found = []
    for batch in loader:
        found.append(batch["index"].tolist())
        assert batch["x"][:, 0].tolist() == batch["x"][:, -1].tolist() == found[-1]
    return found


class TestSameAsTorch:
    @pytest.mark.parametrize(
        ("batch_size", "drop_last", "mmap"), [(63, True, False), (7, False, True), (5000, False, False)]
    )
    @pytest.mark.parametrize("name", RESUMABLE)
    def test_sampler(self, make, name, batch_size, drop_last, mmap):
        options = {"batch_size": batch_size, "drop_last": drop_last}
        wanted = of_torch(2, sampler=RESUMABLE[name](), **options)
        with make(sampler=RESUMABLE[name](), mmap=mmap, **options) as loader:
            assert [numbers(loader) for _ in range(2)] == wanted
            assert len(loader) == len(wanted[0])

    @pytest.mark.parametrize("name", BATCHES)
    def test_batch_sampler(self, make, name):
        wanted = of_torch(2, batch_sampler=BATCHES[name]())
        with make(batch_sampler=BATCHES[name](), memory=Memory(prefetch=1000)) as loader:
            assert [numbers(loader) for _ in range(2)] == wanted
            assert len(loader) == len(wanted[0])
            assert loader.batch_size is None

    @EXAMPLES
    @given(
        indices=st.lists(st.integers(0, 999), max_size=200),
        batch_size=st.integers(1, 30),
        drop_last=st.booleans(),
        kind=st.sampled_from([list, tuple, iter, torch.tensor, lambda indices: np.array(indices, np.int64)]),
    )
    def test_any_indices(self, make, indices, batch_size, drop_last, kind):
        options = {"batch_size": batch_size, "drop_last": drop_last}
        sampler = kind(indices) if indices else indices
        with make(sampler=sampler, memory=Memory(prefetch=2000), **options) as loader:
            assert [numbers(loader)] == of_torch(sampler=indices, **options)

    @EXAMPLES
    @given(batches=st.lists(st.lists(st.integers(0, 999), max_size=40), max_size=40))
    def test_any_batches(self, make, batches):
        with make(batch_sampler=batches, memory=Memory(prefetch=3000)) as loader:
            assert numbers(loader) == batches

    def test_without_a_seed_torchs_global_one_decides(self, make):
        """These samplers draw from it in the consumer's thread, when the epoch begins."""
        for name in (RandomSampler, SubsetRandomSampler):
            found = []
            for _ in range(2):
                torch.manual_seed(5)
                with make(10, sampler=name(ALL)) as loader:
                    found.append(numbers(loader))
            assert found[0] == found[1]
            assert sorted(itertools.chain(*found[0])) == list(ALL)

    def test_a_generator_serves_one_epoch(self, make):
        with make(7, sampler=(index for index in range(30))) as loader:
            assert [index for batch in numbers(loader) for index in batch] == list(range(30))
            assert numbers(loader) == []
            with pytest.raises(TypeError, match="has no len"):
                len(loader)

    def test_indices_count_in_the_users_dataset(self, load, plain):
        subset = Subset(gdsload.ShardDataset(plain), range(500, 1000, 2))
        batch = next(iter(load(subset, 3, sampler=[0, 249, 1], with_index=True)))
        assert batch["index"].tolist() == [0, 249, 1]
        assert batch["x"][:, 0].tolist() == [500, 998, 502]
        with pytest.raises(SampleIndexError, match="gave index 250, but the dataset has samples 0 to 249"):
            next(iter(load(subset, 3, sampler=[250])))

    def test_it_is_an_attribute_as_with_torch(self, make):
        sampler, batches = Own(), [[1], [2]]
        with make(10, sampler=sampler) as one, make(batch_sampler=batches) as other:
            assert (one.sampler, other.batch_sampler) == (sampler, batches)
            assert (one.batch_size, other.batch_size) == (10, None)
            assert "order    sampler (sampler=Own), seed 0" in repr(one)


class TestResume:
    @pytest.mark.parametrize("name", RESUMABLE)
    def test_sampler_at_every_step(self, make, name):
        assert_resumes_everywhere(lambda: make(97, sampler=RESUMABLE[name]()))

    @pytest.mark.parametrize("name", BATCHES)
    def test_batch_sampler_at_every_step(self, make, name):
        def made(**options):
            return make(batch_sampler=BATCHES[name](), **options)

        assert_resumes_everywhere(made, lambda: made(memory=Memory(prefetch=900), mmap=False))

    @pytest.mark.parametrize("name", RESUMABLE)
    @pytest.mark.parametrize(("epochs", "steps"), [(0, 0), (1, 0), (2, 0), (1, 4)])
    def test_the_next_epochs_are_the_same(self, make, name, epochs, steps):
        """Also where the sampler's generator goes on from epoch to epoch."""
        sampler = RESUMABLE[name]
        with make(40, sampler=sampler()) as loader:
            for _ in range(epochs):
                numbers(loader)
            iterator = iter(loader)
            numbers(itertools.islice(iterator, steps))
            state = json.loads(json.dumps(loader.state_dict()))
            wanted = [numbers(iterator), numbers(loader)]
        with make(40, sampler=sampler()) as loader:
            loader.load_state_dict(state)
            assert [numbers(loader) for _ in range(2)] == wanted

    @pytest.mark.parametrize("direct", [True, False])
    def test_set_epoch_is_passed_on(self, make, direct):
        """Or its own `set_epoch` is called, as torch's users do."""
        for wrap in (
            lambda inner: {"sampler": inner, "batch_size": 50},
            lambda inner: {"batch_sampler": BatchSampler(inner, 50, False)},
        ):
            inner, other = DistributedSampler(ALL, 2, 0), DistributedSampler(ALL, 2, 0)
            with make(**wrap(inner)) as loader:
                for epoch in (0, 4, 1):
                    (inner if direct else loader).set_epoch(epoch)
                    other.set_epoch(epoch)
                    iterator = begin(loader)
                    state, rest = loader.state_dict(), numbers(iterator)
                    assert rest == of_torch(batch_size=50, sampler=other)[0][1:]
                    with make(**wrap(DistributedSampler(ALL, 2, 0))) as resumed:
                        resumed.load_state_dict(state)
                        if not direct:
                            resumed.set_epoch(epoch)
                        assert numbers(resumed) == rest

    @pytest.mark.parametrize(
        "sampler",
        [lambda: RandomSampler(ALL), lambda: SubsetRandomSampler(ALL), lambda: iter(ALL), lambda: {1: 2, 3: 4}],
    )
    def test_what_cannot_be_brought_back_is_refused_within_an_epoch_alone(self, make, sampler):
        with make(1, sampler=sampler()) as loader:
            state = loader.state_dict()
            iterator = begin(loader)
            with pytest.raises(StateError, match="cannot be set back into the middle .*seeded generator.*between"):
                loader.state_dict()
            list(iterator)
            assert loader.state_dict()["epoch"] == 1
            loader.load_state_dict(state)

    def test_one_that_does_not_repeat_itself_is_noticed(self, make):
        def sampler(seed):
            return RandomSampler(ALL, generator=seeded(seed))

        with make(10, sampler=sampler(1)) as loader:
            _held = begin(loader, 2)
            state = loader.state_dict()
        short = {**state, "position": 999}
        with make(10, sampler=RandomSampler(range(999), generator=seeded())) as other:
            for wrong in (state, short):
                other.load_state_dict(wrong)
                for _ in range(2):
                    with pytest.raises(StateError, match="does not give the indices again .*same seed"):
                        next(iter(other))
            other.set_epoch(5)
            assert len(numbers(other)) == 100

    @pytest.mark.parametrize(
        ("before", "after", "match"),
        [
            (lambda: torch.arange(9), lambda: torch.arange(1, 10), "indices are not those of the state"),
            (lambda: torch.arange(9), lambda: range(9), "sampler of another kind"),
            (lambda: range(9), Stateful, "sampler of another kind"),
            (Stateful, Own, "sampler of another kind"),
            (Own, lambda: iter(ALL), "sampler of another kind"),
        ],
    )
    def test_another_kind_is_refused(self, make, before, after, match):
        with make(2, sampler=before()) as loader, make(2, sampler=after()) as other:
            next(iter(loader))
            check_refused(other, loader.state_dict(), match)

    @pytest.mark.parametrize(
        ("sampler", "junk", "match"),
        [
            *((random_order, junk, "another kind") for junk in (None, {"begin": {}}, {"begin": 1, "digest": 2})),
            (random_order, {"begin": {"generator": "?"}, "digest": 3}, "generator cannot be used"),
            (random_order, {"begin": {"generator": "AAAA"}, "digest": 3}, "generator cannot be used"),
            (random_order, {"begin": {"generator": None}, "digest": 3}, "generator cannot be used"),
            (Own, {"begin": {"epoch": "1"}, "digest": 0}, "the sampler's epoch .* is no number"),
        ],
    )
    def test_junk_is_refused(self, make, sampler, junk, match):
        with make(2, sampler=sampler()) as loader:
            next(iter(loader))
            check_refused(loader, {**loader.state_dict(), "sampler": junk}, match)


class TestErrors:
    def test_an_index_in_place_of_a_batch(self, make):
        with make(batch_sampler=[[1, 2], 3]) as loader:
            found, error = collect(iter(loader))
            assert found == [[1, 2]]
            with pytest.raises(OptionError, match="gave 3, which is no whole number nor a batch .*lists of"):
                raise error

    @pytest.mark.parametrize(
        ("bad", "kind", "match"),
        [
            (1000, SampleIndexError, "gave index 1000, but the dataset has samples 0 to 999"),
            (-1, SampleIndexError, "gave index -1.*not counted from the end"),
            (2**70, SampleIndexError, "gave index 1180591620717411303424"),
            (1.5, OptionError, "gave 1.5, which is no whole number.*Let it give .*indices"),
            ("7", OptionError, "gave '7', which"),
            (None, OptionError, "gave None, which"),
            ([1], OptionError, r"gave \[1\], which"),
            (torch.tensor(0.5), OptionError, "which is no whole number"),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("at", [0, 37, 299])
    def test_an_index_that_is_none(self, make, bad, kind, match, at):
        indices = [bad if place == at else place for place in range(300)]
        for options in (
            {"batch_size": 10, "sampler": indices},
            {"batch_sampler": [indices[low : low + 10] for low in range(0, 300, 10)]},
        ):
            with make(**options) as loader:
                iterator = iter(loader)
                found, error = collect(iterator)
                assert found == [list(range(low, low + 10)) for low in range(0, at // 10 * 10, 10)]
                for again in (error, None):
                    with pytest.raises(kind, match=match):
                        raise again or collect(iterator)[1]
                assert loader.state_dict()["position"] == at // 10

    @pytest.mark.parametrize("kind", [ZeroDivisionError, SystemExit])
    @pytest.mark.parametrize("at", [0, 5, 10, 123])
    @pytest.mark.parametrize("batches", [False, True])
    def test_a_sampler_that_raises(self, make, at, batches, kind):
        def sampler():
            for number in range(300):
                if number == at:
                    raise kind("mine")
                yield [number, number] if batches else number

        with make(**({"batch_sampler": sampler()} if batches else {"batch_size": 10, "sampler": sampler()})) as loader:
            iterator = iter(loader)
            found, error = collect(iterator)
            assert len(found) == (at if batches else at // 10)
            with pytest.raises(kind, match="mine"):
                raise error
            with pytest.raises(kind if issubclass(kind, Exception) else LoaderClosedError, match="mine"):
                next(iterator)

    @pytest.mark.parametrize("where", ["__iter__", "state_dict"])
    def test_one_that_raises_elsewhere(self, make, where, monkeypatch):
        with make(10, sampler=Stateful()) as loader:
            monkeypatch.setattr(Stateful, where, lambda _: 1 // 0)
            found, error = collect(iter(loader))
            assert (found, type(error)) == ([], ZeroDivisionError)

    @pytest.mark.parametrize("at", [0, 40])
    def test_one_that_is_interrupted_leaves_no_gap(self, make, at, monkeypatch):
        """As by Ctrl-C, where the consumer's thread draws."""
        monkeypatch.setattr("threading.excepthook", lambda _: None)

        def interrupted():
            yield from range(at)
            raise KeyboardInterrupt

        seen = []
        with make(1, sampler=interrupted()) as loader, pytest.raises((KeyboardInterrupt, RuntimeError)):
            seen.extend(batch["index"].item() for batch in loader)
        assert seen == list(range(len(seen)))

    @pytest.mark.parametrize("number", [2**64 - 1, 2**63])
    @pytest.mark.parametrize(
        "form", [lambda given: np.array(given, "u8"), lambda given: torch.tensor(given, dtype=torch.uint64)]
    )
    def test_an_index_of_64_bits_is_named_as_it_was_given(self, make, form, number):
        with pytest.raises(SampleIndexError, match=f"sampler gave index {number}, but"):
            make(2, sampler=form([3, number]))
        with (
            make(batch_sampler=[form([3, number])]) as loader,
            pytest.raises(SampleIndexError, match=f"batch_sampler gave index {number}, but"),
        ):
            list(loader)

    @pytest.mark.parametrize("form", [list, tuple, lambda mask: [*np.array(mask)], lambda mask: [*torch.tensor(mask)]])
    def test_a_mask_holds_no_indices(self, make, form):
        mask = form([False, True])
        for options in ({"sampler": mask}, {"batch_sampler": [mask]}):
            with make(**options) as loader, pytest.raises(OptionError, match="gave .* as of a mask, which is no whole"):
                list(loader)


class TestDrawing:
    @pytest.fixture
    def draws(self, monkeypatch):
        """The draws of each epoch."""
        made = []
        monkeypatch.setattr(sampled, "Draws", lambda *args: made.append(Draws(*args)) or made[-1])
        return made

    def test_an_endless_sampler_is_drawn_from_within_bounds(self, make, draws):
        drawn = 0

        def endless():
            nonlocal drawn
            for drawn in itertools.count():
                yield drawn % 1000

        with make(10, sampler=endless(), memory=Memory(prefetch=3200)) as loader:
            for step, batch in enumerate(itertools.islice(loader, 200)):
                assert batch["index"].tolist() == [number % 1000 for number in range(10 * step, 10 * step + 10)]
                assert drawn < 10 * (step + 64)
            assert draws[-1].steps < 200 + 64

    def test_it_runs_in_one_thread_at_a_time_and_ahead(self, make, soon):
        inside, drawn = threading.Lock(), []

        class Watched:
            def __iter__(self):
                for number in range(1000):
                    assert inside.acquire(blocking=False)
                    drawn.append(number)
                    inside.release()
                    yield number

        with make(10, sampler=Watched()) as loader:
            iterator = begin(loader)
            soon(lambda: len(drawn) >= 100)
            assert len(numbers(iterator)) == 99

    def test_tensors_are_not_looked_through_one_by_one(self, make, monkeypatch):
        class Whole(np.ndarray):
            __iter__ = tolist = None

        for method in ("__iter__", "tolist"):
            monkeypatch.setattr(torch.Tensor, method, None)
        for indices in (torch.arange(1000), np.arange(1000).view(Whole)):
            with make(10, sampler=indices) as loader:
                assert sum(len(batch["x"]) for batch in loader) == 1000

    def test_batches_far_larger_than_the_first_stay_within_the_budget(self, make, draws, wrap):
        """32 bytes a sample; two groups are always allowed."""
        wrap(RecordingBackend)
        sizes = [1, 1, 2, 3, *[500] * 30]
        with make(batch_sampler=[range(size) for size in sizes], memory=Memory(prefetch=4 * 500 * 32)) as loader:
            iterator = begin(loader, 6)
            ahead = draws[-1].steps - 6
            assert ahead <= 8
            assert list(map(len, numbers(iterator))) == sizes[6:]
