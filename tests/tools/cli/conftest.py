"""Fixtures for tests of commands. Commands write their datasets without waiting for the disk."""

import json
import sys
from typing import NamedTuple

import pytest

from gdsload.tools.cli import main
from tests.syncing import no_sync  # noqa: F401 - a fixture
from tests.tools.cli.terminals import Terminal


class Said(NamedTuple):
    """The output of a command."""

    out: str
    err: str

    @property
    def tree(self):
        return json.loads(self.out)


@pytest.fixture
def cli(capsys):
    """Runs a command in this process, which has to end with that exit code, and gives what it has said."""

    def run(*words, code=0):
        found, said = main([*map(str, words)]), Said(*capsys.readouterr())
        assert found == code, said.err
        return said

    return run


@pytest.fixture
def in_terminal(monkeypatch):
    """Runs a command in this process, and gives its exit code and what it has shown in a terminal."""

    def run(*words, columns=80, **environ):
        terminal = Terminal()
        for name, value in ({"COLUMNS": columns, "TERM": "xterm", "NO_COLOR": ""} | environ).items():
            monkeypatch.setenv(name, str(value))
        for stream in ("stdout", "stderr"):
            monkeypatch.setattr(sys, stream, terminal)
        try:
            code = main([*map(str, words)])
        except SystemExit as end:
            code = end.code
        return code, terminal.text

    return run
