"""Each backend has one row, and what reads the names has all of them."""

import pytest

from gdsload.backends.base import FileBackend
from gdsload.backends.names import BACKEND_CHOICES
from gdsload.backends.registry import BACKENDS
from gdsload.tools.cli import main


def test_rows_are_backends_by_their_own_names():
    assert ("auto", *BACKENDS) == BACKEND_CHOICES
    for name, row in BACKENDS.items():
        assert row.backend.name == name
        assert issubclass(row.backend, FileBackend)
        assert row.needs_cuda == (name != "host")


def test_the_command_line_says_what_each_is(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["bench", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert all(f"{name}: {row.summary}" in said for name, row in BACKENDS.items())
