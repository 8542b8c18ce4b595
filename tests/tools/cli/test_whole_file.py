"""Files that commands write: there whole, or as before."""

import os
import socket
import threading

import pytest

from gdsload.errors import WriteError
from gdsload.tools.cli.whole_file import refuse_unwritable, write_whole


def test_a_file_is_written_through_a_link_and_a_pipe_as_it_is(tmp_path):
    (tmp_path / "link").symlink_to("file")
    for content in (b"one", b"two"):
        write_whole(str(tmp_path / "link"), content, "page")
        assert (tmp_path / "file").read_bytes() == content
    os.mkfifo(tmp_path / "pipe")
    content = os.urandom(2**20)  # more than a pipe holds
    with open(os.open(tmp_path / "pipe", os.O_RDWR), "rb") as reader:
        writer = threading.Thread(target=write_whole, args=(str(tmp_path / "pipe"), content, "page"))
        writer.start()
        assert reader.read(len(content)) == content
        writer.join()
    assert sorted(os.listdir(tmp_path)) == ["file", "link", "pipe"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch, error):
    def fail(*_given):
        raise error

    (tmp_path / "card.html").write_bytes(b"mine")
    monkeypatch.setattr("os.replace", fail)
    with pytest.raises((WriteError, KeyboardInterrupt), match="^$|the page cannot be written: No space"):
        write_whole(str(tmp_path / "card.html"), b"new", "page")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("card.html", b"mine")]


def test_what_has_no_reader_is_an_error(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
    for name in ("pipe", "socket"):
        with pytest.raises(WriteError, match="Start what reads it first"):
            write_whole(str(tmp_path / name), b"page", "page")


@pytest.mark.parametrize("path", ["", ".", "to-nothing", "to-itself", "missing/file"])
def test_a_path_of_no_file_is_refused_before_the_work(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "to-nothing").symlink_to("missing/file")
    (tmp_path / "to-itself").symlink_to("to-itself")
    with pytest.raises(WriteError, match="Name a file"):
        refuse_unwritable(path, "page")
