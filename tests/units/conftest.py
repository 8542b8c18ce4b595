"""What unit tests of the page cache share."""

from __future__ import annotations

import errno
import os

import pytest


@pytest.fixture(scope="session")
def bring_in():
    """Reads a file into the page cache; skips where the file system cannot say that it is there."""

    def read(path):
        path.read_bytes()
        with path.open("rb") as file:
            try:
                os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
            except OSError as error:
                if error.errno == errno.EOPNOTSUPP:
                    pytest.skip("this file system does not know reads that must not wait")
                raise

    return read
