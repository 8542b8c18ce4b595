"""Random numbers of transforms: they depend on the place of the batch or sample alone."""

import pytest
import torch
from torch.utils.data import default_collate

from gdsload import Memory, PerSample
from gdsload.order import Purpose, derive_key
from gdsload.testing import assert_resumes_everywhere
from tests.loader.taking import BLOCK, ORDERS, noisy_batch, noisy_sample, prints


def noisy_batch_of(samples):
    """As torchvision's MixUp in a collate_fn: it draws for the batch."""
    return {**default_collate(samples), "own": torch.rand(len(samples)), "order": torch.randperm(len(samples))}


HOOKS = {"sample_transform": noisy_sample, "device_transform": noisy_batch, "collate_fn": noisy_batch_of}


def key_of(given, generator):
    return {"x": given["x"], "key": str(generator.initial_seed())}


def check_keys(hook, batch, epoch, of_batch, of_samples):
    """Check the seeds of generators, which are made of the place of the batch, or of those of its samples."""
    if hook == "device_transform":
        assert batch["key"] == str(derive_key(5, epoch, Purpose.TRANSFORM, *of_batch))
    else:
        assert batch["key"] == [str(derive_key(5, epoch, Purpose.SAMPLE, *place)) for place in of_samples]


@pytest.mark.parametrize("hook", ["sample_transform", "device_transform"])
def test_the_seed_is_made_of_seed_epoch_and_position_among_all_ranks(load, plain, order, hook):
    for rank in (0, 1):
        loader = load(plain, 32, seed=5, ranks=(rank, 2), **{hook: key_of}, **order)
        for epoch in (0, 1):
            for step, batch in enumerate(loader):
                # The last global batch has 1000 - 15 * 64 = 40 samples, 20 for each rank.
                first = step * 64 + rank * (32 if step < 15 else 20)
                check_keys(hook, batch, epoch, [first], [[first + number] for number in range(len(batch["x"]))])


@pytest.mark.parametrize("hook", ["sample_transform", "device_transform"])
def test_with_a_sampler_it_is_made_of_seed_epoch_step_and_rank(load, plain, join, hook):
    for rank in (0, 3):
        join(rank, 4)
        for step, batch in enumerate(load(plain, 300, seed=5, sampler=range(1000), **{hook: key_of})):
            check_keys(hook, batch, 0, [step, rank], [[step, rank, place] for place in range(len(batch["x"]))])


def drawn(batches):
    """The random number of each sample."""
    return [number for batch in batches for number in batch["own"].tolist()]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("order", [*ORDERS, {"sampler": range(1000)}], ids=str)
def test_threads_and_budgets_change_nothing(load, plain, workers, order, hook):
    """Nor does the state of torch's own generator, which is left as it is."""

    def make(count=2, **options):
        draw = PerSample(noisy_sample, workers=count) if hook == "sample_transform" else HOOKS[hook]
        return load(plain, 50, **{hook: draw}, **options, **order)

    found = []
    for count, options in (
        (1, {"memory": Memory(prefetch=1)}), (2, {"ahead": False}), (7, {"memory": Memory(prefetch="1KiB")}),
    ):  # fmt: skip
        workers(count)
        torch.manual_seed(count)
        before = torch.get_rng_state()
        batches = list(make(count, **options))
        found.append(prints(batches))
        assert torch.equal(torch.get_rng_state(), before)
        assert len(set(drawn(batches))) > 995  # of 24 bits: two may be equal
    assert found[0] == found[1] == found[2]
    assert set(drawn(batches)) != set(drawn(make(seed=1)))


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("order", [BLOCK, {"sampler": range(1000)}], ids=str)
def test_they_are_resumed_at_every_step(load, plain, order, hook):
    assert_resumes_everywhere(lambda: load(plain, 63, **{hook: HOOKS[hook]}, **order))
