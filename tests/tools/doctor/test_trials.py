"""The file that reads are tried on: one that is there, or one that is made and removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gdsload.tools.doctor.trials import trial_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a shard."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.safetensors").write_bytes(bytes(8192))
    return data


def test_a_shard_is_preferred_and_nothing_is_made(folder: Path):
    (folder / "0.bin").write_bytes(bytes(8192))
    with trial_file(str(folder)) as file:
        assert file == str(folder / "a.safetensors")
    with trial_file(str(folder / "0.bin")) as file:
        assert file == str(folder / "0.bin")


def test_links_and_small_files_are_passed_over_and_a_made_file_is_removed(tmp_path: Path, folder: Path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "small.safetensors").write_bytes(b"x")
    (empty / "link.safetensors").symlink_to(folder / "a.safetensors")
    with trial_file(str(empty)) as file:
        assert file is not None
        assert os.path.getsize(file) == 2**20
        assert os.path.basename(file).startswith(".gdsload-trial-")
    assert sorted(os.listdir(empty)) == ["link.safetensors", "small.safetensors"]
