"""Each backend has one row, and what reads the names has all of them."""

from gdsload.backends.base import FileBackend
from gdsload.backends.names import BACKEND_CHOICES
from gdsload.backends.registry import BACKENDS


def test_rows_are_backends_by_their_own_names():
    assert ("auto", *BACKENDS) == BACKEND_CHOICES
    for name, row in BACKENDS.items():
        assert row.backend.name == name
        assert issubclass(row.backend, FileBackend)
        assert row.needs_cuda == (name != "host")
