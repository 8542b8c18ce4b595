"""The file that cuFile writes its log into, in a folder that others may write to."""

import os

import pytest

from gdsload.backends.gds.engines import log_file

PLANTED = {
    "a link": lambda path, other: os.symlink(other, path),
    "a hard link": lambda path, other: os.link(other, path),
    "a pipe": lambda path, _: os.mkfifo(path),
    "a folder": lambda path, _: os.mkdir(path),
}


def test_one_file_for_each_user(tmp_path):
    found = {log_file(str(tmp_path)) for _ in range(2)}
    assert found == {str(tmp_path / f"cufile-{os.getuid()}.log")} == {str(path) for path in tmp_path.iterdir()}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_what_another_user_has_planted_is_not_written_to(tmp_path, plant):
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    plant(tmp_path / f"cufile-{os.getuid()}.log", other)
    found = log_file(str(tmp_path))
    assert os.path.dirname(os.path.dirname(found)) == str(tmp_path)
    assert os.stat(os.path.dirname(found)).st_mode & 0o077 == 0
    assert other.read_text() == "mine"
