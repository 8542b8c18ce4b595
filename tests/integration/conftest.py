"""Tests with packages that the core does not need: `make integration` has an environment with them."""

import os

import pytest

from tests.integration.loading import write

if os.environ.get("GDSLOAD_SUITE") != "integration":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "d")
