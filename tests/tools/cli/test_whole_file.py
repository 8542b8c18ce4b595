"""Files that commands write: there whole, or as before."""

import os
import threading

import pytest

from gdsload.errors import WriteError
from gdsload.tools.cli.whole_file import write_whole


def test_a_file_is_written_through_a_link_and_a_pipe_as_it_is(tmp_path):
    (tmp_path / "link").symlink_to("file")
    for content in (b"one", b"two"):
        write_whole(str(tmp_path / "link"), content, "page")
        assert (tmp_path / "file").read_bytes() == content
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=write_whole, args=(str(tmp_path / "pipe"), b"three", "page"))
    writer.start()
    assert (tmp_path / "pipe").read_bytes() == b"three"
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
