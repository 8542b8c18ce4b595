"""Tests with packages that the core does not need: `make integration` has an environment with them."""

import os

import pytest
import torch

import gdsload
from tests.integration.loading import SAMPLES

if os.environ.get("GDSLOAD_SUITE") != "integration":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def path(tmp_path):
    """A dataset of so many numbers."""
    with gdsload.ShardWriter(tmp_path / "d") as writer:
        writer.write_batch({"x": torch.arange(SAMPLES)})
    return tmp_path / "d"
