"""Every sample of an epoch comes exactly once, as it was written, in an order that the order options alone decide."""

import copy
import functools
import itertools
import json
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler, RandomSampler

import gdsload
from gdsload import BlockShuffle, Memory
from gdsload.errors import StateError
from gdsload.order import Schedule, make_order
from gdsload.testing import RecordingBackend, SlowBackend
from tests.loader.taking import EXAMPLES, begin, numbers, prints
from tests.order.quality import batch_ids

ORDERS = [
    {"shuffle": False},
    {"shuffle": "full"},
    {"shuffle": BlockShuffle(block=8, window=32, lanes=3)},
    {"shuffle": BlockShuffle(block=1, window=1, lanes=1)},
    {"shuffle": BlockShuffle(block=5, window=1000, lanes=2)},
    {"shuffle": BlockShuffle(block=7, window=13, lanes=17)},
]
LARGE = "1GiB"


@pytest.mark.parametrize(("batch_size", "mmap"), [(1, True), (16, True), (16, False), (500, False)])
def test_batches_are_the_samples_that_were_written(load, rich, expect_rich, order, mmap, batch_size):
    loader = load(rich, batch_size, mmap=mmap, with_index=True, ragged="offsets", memory=Memory(arena=LARGE), **order)
    seen = []
    for batch in loader:
        numbers = batch["index"].tolist()
        expect_rich(batch, numbers)
        assert list(batch) == [*gdsload.ShardDataset(rich).schema, "index"]
        assert len(numbers) == min(batch_size, 143 - len(seen))
        seen += numbers
    assert sorted(seen) == list(range(143))
    assert (seen == sorted(seen)) == (order["shuffle"] is False)


@EXAMPLES
@given(
    order=st.one_of(
        st.sampled_from([{"shuffle": False}, {"shuffle": "full"}]),
        st.builds(
            lambda block, window, lanes: {"shuffle": BlockShuffle(block=block, window=window, lanes=lanes)},
            st.integers(1, 300),
            st.integers(1, 1200),
            st.integers(1, 40),
        ),
    ),
    batch_size=st.integers(1, 300),
    world_size=st.integers(1, 6),
    tail=st.sampled_from(["share", "pad", "drop"]),
    mmap=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
)
def test_all_ranks_together_give_every_sample_once(plain, order, batch_size, world_size, tail, mmap, seed):
    total = batch_size * world_size
    steps, counted = [], []
    for rank in range(world_size):
        with gdsload.DataLoader(
            plain, batch_size, device="cpu", ranks=(rank, world_size), tail=tail, seed=seed,
            mmap=mmap, with_index=True, with_real=True, memory=Memory(arena=LARGE), **order,
        ) as loader:  # fmt: skip
            found = list(loader)
            assert len(found) == len(loader) == (1000 // total if tail == "drop" else -(-1000 // total))
            for batch in found:
                assert batch["x"][:, 0].tolist() == batch["x"][:, -1].tolist() == batch["index"].tolist()
            wanted = make_order(loader.order_options, [256, 256, 256, 232], seed, 0)
            schedule = Schedule(1000, batch_size, rank, world_size, tail, wanted.lanes)
            assert numbers(found) == [batch_ids(wanted, schedule, step).tolist() for step in range(len(loader))]
            steps.append(numbers(found))
            counted += [index for batch in found for index in batch["index"][batch["real"]].tolist()]
    assert sorted(counted) == sorted(set(counted))
    seen = sorted(index for rank in steps for batch in rank for index in batch)
    if tail == "drop":
        assert len(seen) == len(set(seen)) == len(counted) == 1000 // total * total
    else:
        assert sorted(set(seen)) == sorted(counted) == list(range(1000))
        assert len(seen) - 1000 < (world_size if tail == "share" else total)
    full = steps[0][:-1] if tail == "share" and 1000 % total else steps[0]
    assert all(len(batch) == batch_size for batch in full)


def test_an_empty_batch_has_every_field_with_its_type(load, rich, expect_rich, mmap):
    """As a batch sampler may want it; nothing else asks for one."""
    wanted = [[3, 4], [], [5]]
    found = list(load(rich, batch_sampler=wanted, with_index=True, ragged="offsets", mmap=mmap))
    assert numbers(found) == wanted
    for batch in found:
        expect_rich(batch, batch["index"].tolist())


@pytest.fixture(scope="module", params=ORDERS, ids=str)
def order(request):
    return request.param


@pytest.fixture(scope="module")
def reference(rich, order):
    with gdsload.DataLoader(rich, 6, seed=3, device="cpu", with_index=True, **order) as loader:
        return prints(loader)


class TestNothingElseDecidesTheOrder:
    @pytest.mark.parametrize(
        ("budget", "mmap"),
        [({"prefetch": 1}, True), ({"prefetch": 3000}, True), ({"prefetch": 3000}, False), ({"arena": "2MiB"}, False)],
    )
    def test_budgets_and_mappings(self, load, rich, order, reference, budget, mmap):
        options = {"memory": Memory(**budget), "mmap": mmap, "with_index": True, **order}
        assert prints(load(rich, 6, seed=3, **options)) == reference

    @pytest.mark.parametrize("workers", [2, 7])
    def test_the_number_of_threads(self, load, rich, order, reference, workers, monkeypatch):
        monkeypatch.setattr("gdsload.engine.limits.MOST_THREADS", workers)
        monkeypatch.setattr("os.sched_getaffinity", lambda _: range(workers + 1))
        assert prints(load(rich, 6, seed=3, with_index=True, **order)) == reference

    def test_how_long_reads_take(self, load, rich, order, reference, wrap, mmap):
        delays = random.Random(1)
        wrap(lambda inner: SlowBackend(inner, lambda: delays.random() * 0.004))
        assert prints(load(rich, 6, seed=3, mmap=mmap, with_index=True, **order)) == reference


def test_the_windows_in_memory_stay_within_arena_bytes(load, plain, wrap):
    made = wrap(RecordingBackend)
    options = {
        "shuffle": BlockShuffle(block=8, window=40, lanes=5),
        "memory": Memory(prefetch=700, arena=6 * 40 * 32 + 64 * 1000),
    }
    loader = load(plain, 10, mmap=False, **options)
    assert sum(len(batch["x"]) for _ in range(2) for batch in loader) == 2000
    (backend,) = made
    assert backend.held_bytes == 0
    assert backend.released_twice == 0
    # The smallest piece of arena memory is 64 KiB, so count windows instead of bytes: one of each lane, and one ahead.
    assert backend.most_held_bytes <= (5 + 1 + 2) * 64 * 1024


LOOKS = {
    "no look": lambda loader: None,
    "a look": lambda loader: next(iter(loader)),
    "two looks": lambda loader: (next(iter(loader)), next(iter(loader))),
    "two at once": lambda loader: next(zip(loader, loader, strict=True)),
    "a break": lambda loader: [None for _ in itertools.islice(loader, 7)],
    "an iterator that is kept": lambda loader: (kept := iter(loader), next(kept)),
}
SAMPLED = {
    "order": lambda: {"shuffle": True},
    "in order": dict,
    "no seed": lambda: {"shuffle": True, "seed": None},
    "generator": lambda: {"sampler": RandomSampler(range(1000), generator=torch.Generator().manual_seed(1))},
    "its own epoch": lambda: {"sampler": DistributedSampler(range(1000), 1, 0)},
}


def as_documented(loader, epochs, steps=None):
    """The loop of docs/ranks.md: the indices of each batch by epoch and step, until so many batches are trained."""
    found = {}
    for epoch in range(loader.epoch, epochs):
        loader.set_epoch(epoch)
        for step, batch in enumerate(loader, loader.step):
            found[epoch, step] = batch["index"].tolist()
            if len(found) == steps:
                return found
    return found


class TestEpochsThatAreLeft:
    """`loader.epoch` counts finished epochs, so that a look at a batch costs none."""

    @pytest.mark.parametrize("kind", SAMPLED)
    @pytest.mark.parametrize("look", LOOKS)
    def test_the_documented_loop_trains_all_epochs(self, load, plain, look, kind):
        options = {"batch_size": 100, "with_index": True}
        loader, other = load(plain, **options, **SAMPLED[kind]()), load(plain, **options, **SAMPLED[kind]())
        looked = LOOKS[look](loader)
        assert loader.epoch == 0
        found = as_documented(loader, 3)
        assert list(found) == [(epoch, step) for epoch in range(3) for step in range(10)]
        for epoch in range(3):
            assert sorted(itertools.chain(*(found[epoch, step] for step in range(10)))) == list(range(1000))
        assert loader.epoch == 3
        if kind not in ("no seed", "generator"):  # the batches are those of a loader that nobody has looked into
            assert found == as_documented(other, 3)
        del looked

    @pytest.mark.parametrize("look", LOOKS)
    @pytest.mark.parametrize(("before", "steps"), [("no look", 1), ("two at once", 10), ("no look", 29)])
    def test_a_run_that_is_resumed_trains_what_is_left(self, load, plain, before, look, steps):
        make = functools.partial(load, plain, 100, True, with_index=True)
        wanted, loader, resumed = as_documented(make(), 3), make(), make()
        LOOKS[before](loader)
        found = as_documented(loader, 3, steps=steps)
        resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        looked = LOOKS["a look" if steps % 10 > 2 else look](resumed)  # not at all that is left
        assert resumed.epoch == steps // 10
        assert found | as_documented(resumed, 3) == wanted
        del looked

    def test_the_count_goes_on_with_a_state_and_with_a_copy(self, load, plain):
        loader = load(plain, 100, True, with_index=True)
        next(iter(loader))
        first, second = numbers(loader), begin(loader)
        assert loader.epoch == 1
        resumed = load(plain, 100, True, with_index=True)
        resumed.load_state_dict(loader.state_dict())
        for other in (resumed, copy.copy(loader)):
            assert (other.epoch, len(numbers(other)), other.epoch) == (1, 9, 2)
        assert first != numbers(second)
        copied = copy.copy(loader)
        assert (copied.epoch, loader.epoch, numbers(copied)) == (2, 2, numbers(loader))

    @pytest.mark.parametrize("kind", SAMPLED)
    def test_an_epoch_is_finished_with_its_last_batch(self, load, plain, kind):
        loader = load(plain, batch_size=100, with_index=True, **SAMPLED[kind]())
        iterator = iter(loader)
        for step in range(10):
            assert (loader.epoch, step) == (0, step)
            next(iterator)
        assert loader.epoch == 1
        next(iter(loader))
        assert (next(iterator, None), loader.epoch) == (None, 1)
        assert (len(numbers(loader)), loader.epoch) == (10, 2)

    @pytest.mark.parametrize("kind", SAMPLED)
    def test_a_look_at_an_epoch_of_one_batch_costs_none(self, load, plain, kind):
        loader = load(plain, batch_size=1000, with_index=True, **SAMPLED[kind]())
        next(iter(loader))
        assert loader.epoch == 0
        assert (len(numbers(loader)), loader.epoch) == (1, 1)

    @pytest.mark.parametrize("left", [-1, 2, "1", None, True])
    def test_a_count_that_is_none_is_refused(self, load, plain, left):
        loader = load(plain, 100)
        list(loader)
        with pytest.raises(StateError, match="so many cannot be unfinished"):
            loader.load_state_dict({**loader.state_dict(), "left": left})
