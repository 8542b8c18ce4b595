"""What tests of commands share. Commands write their datasets without waiting for the disk."""

import json
from typing import NamedTuple

import pytest

from gdsload.tools.cli import main
from tests.syncing import no_sync  # noqa: F401 - a fixture


class Said(NamedTuple):
    """What a command has printed."""

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
