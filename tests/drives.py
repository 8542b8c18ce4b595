"""Folders that stand for drives: what tells two of them apart, where all lie on one, is the folder."""

from __future__ import annotations

import os

import pytest


def make_drives(folder, count):
    """So many of them in a folder, which are empty."""
    found = [folder / f"nvme{number}" for number in range(count)]
    for drive in found:
        drive.mkdir()
    return found


def folder_of(source):
    """What `Drive.lies_on` is then: the folder that a shard lies in."""
    return os.path.dirname(os.path.realpath(source.path))


@pytest.fixture
def drives(tmp_path):
    """Three."""
    return make_drives(tmp_path, 3)
