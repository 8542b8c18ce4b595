"""Accelerate: what it does with loaders, in one process; `test_ranks` has two of them."""

import functools

import pytest
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import RandomSampler

from gdsload import OptionError
from gdsload.integrations.accelerate import prepare
from tests.integration.loading import BATCH, SAMPLES, STEPS, load, numbers


@pytest.fixture
def make_accelerator():
    """Makes one, of which nothing is left: its state is the process's."""
    yield functools.partial(Accelerator, cpu=True)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture
def accelerator(make_accelerator):
    return make_accelerator()


def seeded():
    return {"shuffle": False, "sampler": RandomSampler(range(SAMPLES), generator=torch.Generator().manual_seed(1))}


WAYS = {"order": dict, "sampler": seeded}


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_a_prepared_loader_gives_the_loaders_batches(path, accelerator, options):
    _, prepared = accelerator.prepare(torch.nn.Linear(1, 1), prepare(accelerator, load(path, **options())))
    assert isinstance(prepared, torch.utils.data.DataLoader)
    assert (len(prepared), len(prepared.dataset)) == (STEPS, SAMPLES)
    expected = load(path, **options())
    before = torch.get_rng_state()
    assert [numbers(prepared) for _ in range(3)] == [numbers(expected) for _ in range(3)]
    assert torch.equal(before, torch.get_rng_state())
    two = [(one["x"].tolist(), other["x"].tolist()) for one, other in zip(prepared, prepared, strict=True)]
    assert len(two) == STEPS


@pytest.mark.parametrize("batch_size", [SAMPLES, BATCH])
def test_epochs_that_were_run_to_their_end_count(path, accelerator, batch_size):
    loader = prepare(accelerator, load(path, batch_size=batch_size))
    for epoch in range(3):
        assert loader.loader.epoch == epoch
        list(loader)
    next(iter(loader))
    assert loader.loader.epoch == 3


def test_the_loader_itself_goes_through_prepare_untouched(path, accelerator):
    loader = load(path)
    assert accelerator.prepare(loader) is loader


def test_accumulation_ends_with_the_epoch(path, make_accelerator):
    accelerator = make_accelerator(gradient_accumulation_steps=4)
    prepared = prepare(accelerator, load(path))
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    for _ in range(2):
        stepped = []
        for _ in prepared:
            with accelerator.accumulate(model):
                stepped.append(accelerator.sync_gradients)
        assert stepped == [step % 4 == 3 or step == STEPS - 1 for step in range(STEPS)]
    next(iter(prepared))
    assert not accelerator.gradient_state.in_dataloader  # a dropped epoch is none


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("skipped", [0, 1, 5, STEPS])
def test_skipping_leaves_out_batches_of_that_epoch(path, accelerator, options, skipped):
    loader = load(path, **options())
    prepared = prepare(accelerator, loader)
    rest = skip_first_batches(prepared, skipped)
    assert len(rest) == STEPS - skipped
    assert numbers(rest) == numbers(load(path, **options()))[skipped:]
    if skipped < STEPS:
        assert loader.stats.batches == STEPS - (skipped if loader.order_options.shuffle != "sampler" else 0)
        expected = load(path, **options())
        numbers(expected)
        assert numbers(prepared) == numbers(expected)


def test_skipping_in_a_loader_that_was_not_prepared_says_so(path, accelerator):
    with pytest.raises(OptionError, match="gdsload.integrations"):
        next(iter(skip_first_batches(load(path), 3)))


def test_saved_states_have_the_loaders_place(path, accelerator, tmp_path):
    first = prepare(accelerator, load(path))
    whole = numbers(first) + numbers(first)
    accelerator.free_memory()
    second = prepare(accelerator, load(path))
    numbers(second)
    for step, _ in enumerate(second, 1):
        if step == 5:
            accelerator.save_state(tmp_path / "state")
            break
    accelerator.free_memory()
    third = prepare(accelerator, load(path))
    accelerator.load_state(tmp_path / "state")
    assert numbers(third) == whole[STEPS + 5 :]
    assert len(numbers(third)) == STEPS


@pytest.mark.parametrize("name", ["dispatch_batches", "split_batches"])
def test_what_does_not_go_with_loaders_that_share_out_is_refused(path, make_accelerator, name):
    made = make_accelerator(dataloader_config=DataLoaderConfiguration(**{name: True}))
    with pytest.raises(OptionError, match=f"{name} of the accelerator is True"):
        prepare(made, load(path))
