"""The attributes that frameworks read from a loader, and the error if they make a torch loader of it."""

import inspect

import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler

import gdsload
from gdsload import OptionError
from gdsload.loader.torch_keywords import TorchKeywords
from tests.loader.taking import begin, firsts

KEYWORDS = [*inspect.signature(gdsload.DataLoader.__init__).parameters][1:-1]
UNNEEDED = [*TorchKeywords.__annotations__]


@pytest.mark.parametrize("name", [*KEYWORDS, "order_options", "stats", *UNNEEDED])
def test_what_has_taken_effect_or_has_none_cannot_be_set(load, plain, name):
    loader = load(plain, 8)
    before = name != "cache" and getattr(loader, name, None)  # each look makes another status
    if name == "worker_init_fn":  # Lightning sets it
        loader.worker_init_fn = print
        return
    remedy = f"Make a new one with the `{name}`" if name in KEYWORDS else "Leave it out"
    with pytest.raises(OptionError, match=f"{name} cannot be set after the DataLoader was made.* {remedy}"):
        setattr(loader, name, 7)
    assert name == "cache" or getattr(loader, name, None) is before


def test_an_attribute_of_the_users_own_can_be_set(load, plain):
    """Those of subclasses, too: `test_copies.py`."""
    loader = load(plain, 8)
    loader.name = "mine"
    assert loader.name == "mine"


def test_attributes_of_torchs_loader_have_its_defaults(load, plain):
    torchs, loader = DataLoader(range(3)), load(plain, 8)
    names = [name for name in vars(torchs) if name[0] != "_"]
    assert [name for name in names if not hasattr(loader, name)] == []
    for name in {*names} - {"dataset", "batch_size", "sampler", "batch_sampler", "collate_fn"}:
        assert getattr(loader, name) == getattr(torchs, name), name


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"sampler": [1, 2, 3]}], ids=str)
def test_lengths_and_kind(load, plain, options):
    loader = load(plain, 8, drop_last=True, **options)
    assert isinstance(loader.sampler, SequentialSampler) == (not options)
    assert len(loader.sampler) == len(loader.dataset) or "sampler" in options
    assert len(loader.batch_sampler) == len(loader)
    assert (loader.batch_sampler.batch_size, loader.batch_sampler.drop_last) == (8, True)


@pytest.mark.parametrize("made", ["sampler", "batch_sampler"])
def test_the_epoch_is_set_by_the_sampler(load, plain, made):
    tell = (lambda loader: loader.sampler) if made == "sampler" else lambda loader: loader.batch_sampler.sampler
    loader, other = load(plain, 100, True), load(plain, 100, True)
    tell(loader).set_epoch(5)
    other.set_epoch(5)
    assert [batch["x"].tolist() for batch in loader] == [batch["x"].tolist() for batch in other]
    assert loader.epoch == 6


def test_the_epoch_reaches_a_batch_sampler_of_the_users(load, rich):
    buckets = gdsload.LengthBuckets(rich, "points", 8)
    loader = load(rich, batch_sampler=buckets)
    loader.sampler.set_epoch(3)
    assert loader.epoch == 3


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"sampler": torch.arange(50)}], ids=str)
def test_a_loader_of_torchs_made_of_ours_says_so(load, plain, options):
    loader = load(plain, 8, **options)
    made = [
        DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn),
        DataLoader(loader.dataset, 8, sampler=loader.sampler, collate_fn=loader.collate_fn),
        DataLoader(loader.dataset, 8, collate_fn=loader.collate_fn, num_workers=loader.num_workers),
    ]
    for one in made:
        with pytest.raises(OptionError, match="a loader of torch's from a gdsload.DataLoader"):
            next(iter(one))


@pytest.mark.parametrize(
    "options", [{"shuffle": True}, {"shuffle": gdsload.BlockShuffle(block=16, window=64)}, {"drop_last": True}], ids=str
)
@pytest.mark.parametrize("step", [0, 1, 9, 15])
def test_an_epoch_begins_with_any_of_its_batches(load, plain, options, step):
    loader, other = load(plain, 64, **options), load(plain, 64, **options)
    loader.set_epoch(3, step)
    other.set_epoch(3)
    assert (loader.epoch, loader.step) == (3, step)
    loader.set_epoch(3)  # which keeps the place
    assert firsts(loader) == firsts(other)[step:]
    assert loader.step == 0
    assert firsts(loader) == firsts(other)


def test_the_step_is_that_of_a_resumed_state(load, plain):
    loader, other = load(plain, 64, True), load(plain, 64, True)
    _held = begin(loader, 2)
    other.load_state_dict(loader.state_dict())
    assert (other.epoch, other.step, loader.epoch, loader.step) == (0, 2, 0, 0)
    other.set_epoch(0, 0)
    assert firsts(other) == firsts(load(plain, 64, True))
