"""The process in which libraries read files that may be damaged."""

import os

import pytest

import gdsload
from gdsload.conversion.runner import plan
from gdsload.errors import FormatError, ReadError


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "library"), [("csv", "pyarrow"), ("hdf5", "h5py"), ("images", "PIL"), ("lmdb", "lmdb")]
)
def test_a_file_that_ends_its_reader_at_the_first_look_is_an_error(tmp_path, monkeypatch, make_source, kind, library):
    """Before any sample is known: a description may read the file already, as that of a table and of images does."""
    pytest.importorskip(library)  # this process has it, the next one finds another
    (first, *_), _ = make_source(kind, tmp_path / "in")
    (tmp_path / "in" / first).with_name(f"._{first[-5:]}").touch()  # of which a note tells
    (tmp_path / "crashing").mkdir()
    (tmp_path / "crashing" / f"{library}.py").write_text("import os\nos.abort()\n")
    monkeypatch.syspath_prepend(tmp_path / "crashing")
    count = 1 if kind == "lmdb" else 2  # known to crash: also a single worker is another process
    said = r"in: the process that reads it has died: .*signal 6 \(SIGABRT\)\. .*damaged"
    with pytest.raises(FormatError, match=said):
        gdsload.convert(tmp_path / "in", tmp_path / "out", kind=kind, workers=count)
    with pytest.raises(FormatError, match=said):
        plan(tmp_path / "in", kind=kind, workers=count)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["crashing", "in"]
    monkeypatch.undo()
    alone, apart = (gdsload.convert(tmp_path / "in", tmp_path / f"{n}", kind=kind, workers=n) for n in (1, 2))
    assert apart.notes == plan(tmp_path / "in", kind=kind, workers=2).notes == alone.notes
    assert "1 file or folder is passed over" in alone.notes[-1]
    assert gdsload.ShardDataset(apart.path).digest == gdsload.ShardDataset(alone.path).digest


_DIES_IN_ITS_SECOND_PROCESS = """
import importlib, os, sys
mark = os.path.join(os.path.dirname(__file__), "seen")
if os.path.exists(mark):
    os.abort()
open(mark, "x").close()
sys.path.remove(os.path.dirname(__file__))
del sys.modules[__name__]
importlib.import_module(__name__)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "library"),
    [("parquet", "pyarrow"), ("hdf5", "h5py"), ("images", "PIL"), ("audio", "soundfile"), ("zarr", "zarr")],
)
def test_a_file_that_ends_its_reader_after_the_first_look_is_an_error(
    tmp_path, monkeypatch, make_source, kind, library
):
    """Also where there is but one part, and where threads would do as well."""
    pytest.importorskip(library)
    make_source(kind, tmp_path / "in")
    (tmp_path / "crashing").mkdir()
    (tmp_path / "crashing" / f"{library}.py").write_text(_DIES_IN_ITS_SECOND_PROCESS)
    monkeypatch.syspath_prepend(tmp_path / "crashing")
    with pytest.raises(ReadError, match=r"a worker was lost: .*signal 6 \(SIGABRT\), in .*"):
        gdsload.convert(tmp_path / "in", tmp_path / "out", kind=kind, workers=2)
    assert (tmp_path / "crashing" / "seen").exists()
    monkeypatch.undo()
    assert len(gdsload.ShardDataset(gdsload.convert(tmp_path / "in", tmp_path / "out", kind=kind, workers=2).path))


@pytest.mark.parametrize("kind", ["lmdb", "mat"])
def test_a_single_worker_is_another_process_where_the_library_may_crash(tmp_path, make_source, converted, kind):
    make_source(kind, tmp_path / "in")
    found = converted(tmp_path / "in", kind=kind, map=f"{__name__}:process").column("process")
    assert (len(found.unique()), os.getpid() in found) == (1, False)


def process(sample):
    return {"process": os.getpid()}
