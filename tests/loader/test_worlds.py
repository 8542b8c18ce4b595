"""Rank and world size come from torch.distributed, where it is initialised and nothing else was said."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


@pytest.fixture
def group():
    """A process group of three, of which this is the second."""
    dist.init_process_group("fake", rank=1, world_size=3, store=FakeStore())
    yield
    dist.destroy_process_group()


def test_the_process_group_decides(load, plain, group):
    loader = load(plain, 10, with_index=True)
    assert len(loader) == 34
    assert next(iter(loader))["index"].tolist() == list(range(10, 20))
    assert loader.state_dict()["global_batch"] == 30


def test_what_is_passed_comes_first(load, plain, group):
    assert next(iter(load(plain, 10, rank=0, world_size=2, with_index=True)))["index"].tolist() == list(range(10))


def test_without_one_it_is_alone(load, plain):
    assert load(plain, 10).state_dict()["global_batch"] == 10
