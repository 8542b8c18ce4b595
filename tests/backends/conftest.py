"""Shards that backends read, of very different lengths, and the end of what tests have opened."""

from contextlib import ExitStack, closing

import numpy as np
import pytest
import safetensors.numpy

from tests.backends.extents import SIZES


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    for number, size in enumerate(SIZES):
        safetensors.numpy.save_file({"x": rng.integers(0, 256, (size, 3), np.uint8)}, path / f"{number}.safetensors")
    return path


@pytest.fixture(scope="module")
def contents(folder):
    return [path.read_bytes() for path in sorted(folder.iterdir())]


@pytest.fixture
def to_close():
    """Gives back what it is given, and closes it when the test has ended."""
    with ExitStack() as opened:
        yield lambda one: opened.enter_context(closing(one))
