"""Small datasets, and processes that die."""

import os
import sys

import numpy as np
import pytest
import safetensors.numpy

from tests.shards.small_dataset import sample_of, write_small
from tests.syncing import no_sync  # noqa: F401 - a fixture


@pytest.fixture
def expect():
    """Return whether samples of a dataset are those of the small one."""

    def check(dataset, mark=0, indices=None):
        indices = range(len(dataset)) if indices is None else indices
        for index, found in zip(indices, dataset.__getitems__(list(indices)), strict=True):
            wanted = sample_of(index, mark)
            assert wanted["words"] == found["words"]
            assert wanted["x"].tolist() == found["x"].tolist()
            assert wanted["points"].tolist() == found["points"].tolist()

    return check


@pytest.fixture(name="write_small")
def write_small_one():
    """Write the small dataset."""
    return write_small


@pytest.fixture
def small(tmp_path, write_small):
    """The folder of a small dataset of several shards."""
    write_small(tmp_path / "small")
    return tmp_path / "small"


@pytest.fixture
def folder(tmp_path):
    """Ten files of another program's, of two samples each, without checksums."""
    for number in range(10):
        safetensors.numpy.save_file({"x": np.full((2, 3), number, np.int32)}, tmp_path / f"{number}.safetensors")
    return tmp_path


@pytest.fixture
def forked():
    """Run a function in a fork of this process, and return how it ended; a negative number is a signal's.

    A fork is cheap enough to die at each of a hundred points, and it is as dead as any process.
    """

    def run(work, *, wait=True):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 70
            try:
                code = work() or 0
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if wait else child

    return run
