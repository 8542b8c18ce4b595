"""The process in which libraries read files that may be damaged."""

import ctypes
import multiprocessing
import os
import threading

import pytest

import gdsload
from gdsload.conversion.runner import plan
from gdsload.conversion.spread import read_apart
from gdsload.errors import FormatError


def crash(file):
    ctypes.string_at(1)


def fail(file):
    raise ValueError(f"{os.path.basename(file)} is odd")


def process(file):
    return os.getpid()


def test_it_is_one_process_and_not_this_one(tmp_path):
    found = []
    threads = [threading.Thread(target=lambda: found.append(read_apart(process, "a"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert os.getpid() not in found


def test_a_file_that_ends_it_is_at_fault_and_the_next_one_is_read():
    said = r"a.mat: the process that reads it has died: .*signal 11 \(SIGSEGV\)\. .*damaged"
    with pytest.raises(FormatError, match=said):
        read_apart(crash, "a.mat")
    assert read_apart(os.path.basename, "/tmp/b.mat") == "b.mat"


def test_errors_are_raised_here():
    with pytest.raises(ValueError, match="a.mat is odd"):
        read_apart(fail, "/tmp/a.mat")


def test_a_worker_of_a_conversion_reads_by_itself(monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "name", "gdsload-convert")
    assert read_apart(process, "a") == os.getpid()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "library"), [("csv", "pyarrow"), ("hdf5", "h5py"), ("images", "PIL")])
def test_a_file_that_ends_its_reader_at_the_first_look_is_an_error(tmp_path, monkeypatch, make_source, kind, library):
    """Before any sample is known: a description may read the file already, as that of a table and of images does."""
    pytest.importorskip(library)  # this process has it, the next one finds another
    (first, *_), _ = make_source(kind, tmp_path / "in")
    (tmp_path / "in" / first).with_name(f"._{first[-5:]}").touch()  # of which a note tells
    (tmp_path / "crashing").mkdir()
    (tmp_path / "crashing" / f"{library}.py").write_text("import os\nos.abort()\n")
    monkeypatch.syspath_prepend(tmp_path / "crashing")
    said = r"in: the process that reads it has died: .*signal 6 \(SIGABRT\)\. .*damaged"
    with pytest.raises(FormatError, match=said):
        gdsload.convert(tmp_path / "in", tmp_path / "out", kind=kind, workers=2)
    with pytest.raises(FormatError, match=said):
        plan(tmp_path / "in", kind=kind, workers=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["crashing", "in"]
    monkeypatch.undo()
    alone, apart = (gdsload.convert(tmp_path / "in", tmp_path / f"{n}", kind=kind, workers=n) for n in (1, 2))
    assert apart.notes == plan(tmp_path / "in", kind=kind, workers=2).notes == alone.notes
    assert "1 file or folder is passed over" in alone.notes[-1]
    assert gdsload.ShardDataset(apart.path).digest == gdsload.ShardDataset(alone.path).digest
