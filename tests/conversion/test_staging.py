"""The folder in which a conversion grows: whose it is, and what may be removed from it."""

import errno
import fcntl
import os
import re
import shutil
import tracemalloc
from itertools import chain

import numpy as np
import pytest

import gdsload
from gdsload.errors import ConversionError, OptionError, ReadError, WriteError

ROWS = 100


@pytest.fixture
def arrays(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(ROWS, dtype=np.int32))
    return tmp_path / "x.npy"


@pytest.fixture
def diary(tmp_path):
    folder = tmp_path / "diary"
    (folder / "chapters").mkdir(parents=True)
    (folder / "chapters" / "one.txt").write_text("dear diary")
    (folder / "notes.txt").write_text("mine")
    return folder


def tree(folder):
    """All that is below a folder: names, and what files hold."""
    found = {}
    for place, folders, names in os.walk(folder):
        for name in chain(folders, names):
            path = os.path.join(place, name)
            kept = os.path.isfile(path) and not os.path.islink(path)
            with open(path if kept else os.devnull, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read()
    return found


def do(arrays, out, *, restart=False):
    return gdsload.convert(arrays, out, workers=1, shard_bytes=80, restart=restart)


LOOKS = {
    "a link to a folder": lambda stage, diary: stage.symlink_to(diary),
    "a link to an empty folder": lambda stage, diary: (diary / "none").mkdir() or stage.symlink_to(diary / "none"),
    "a link to nothing": lambda stage, diary: stage.symlink_to(diary / "nothing"),
    "a link to itself": lambda stage, diary: stage.symlink_to(stage),
    "a file": lambda stage, diary: stage.write_text("mine"),
    "a folder": lambda stage, diary: os.rename(diary, stage),
    "a folder with a lock": lambda stage, diary: (os.rename(diary, stage), (stage / "lock").write_text("")),
    "the names, but no lock": lambda stage, diary: (stage.mkdir(), (stage / "plan.json").write_text("{}")),
    "a lock that is a link": lambda stage, diary: (stage.mkdir(), (stage / "lock").symlink_to(diary / "notes.txt")),
    "a part that is a link": lambda stage, diary: (
        stage.mkdir(), (stage / "lock").write_text(""), (stage / "part-000000").symlink_to(diary),
    ),
    "a part with other files": lambda stage, diary: (
        stage.mkdir(), (stage / "lock").write_text(""), os.rename(diary, stage / "part-000000"),
    ),
    "a plan that is a link": lambda stage, diary: (
        stage.mkdir(), (stage / "lock").write_text(""), (stage / "plan.json").symlink_to(diary / "notes.txt"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("restart", [False, True])
def test_what_no_conversion_has_made_is_left_alone(tmp_path, arrays, diary, look, restart):
    LOOKS[look](tmp_path / ".out.gdsload-convert", diary)
    before = tree(tmp_path)
    with pytest.raises(OptionError, match=r"gdsload-convert: .*Nothing there was touched. Look what it is; move it"):
        do(arrays, tmp_path / "out", restart=restart)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(("module", "name", "of"), [(os, "rmdir", "convert"), (shutil, "rmtree", "[0-9a-f]{12}")])
def test_an_interruption_of_the_tidying_up_stands_in_nobodys_way(arrays, tmp_path, monkeypatch, module, name, of):
    """Not in this process's either, which held the lock; and no message asks to run it again."""
    real = getattr(module, name)

    def interrupt(path, **options):
        replaced = name == "rmdir" or os.listdir(path)  # the first one is empty: it shows that one can be made
        if replaced and re.fullmatch(rf"\.out\.gdsload-{of}", os.path.basename(path)):
            raise KeyboardInterrupt
        return real(path, **options)

    do(arrays, tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(module, name, interrupt)
        with pytest.raises(KeyboardInterrupt) as caught:
            gdsload.convert(arrays, tmp_path / "out", workers=1, overwrite=True, casts={"x": "float64"})
    assert not hasattr(caught.value, "__notes__")
    assert gdsload.ShardDataset(tmp_path / "out").schema["x"].dtype.name == "float64"
    gdsload.convert(arrays, tmp_path / "out", workers=1, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["out", "x.npy"]


def test_an_empty_folder_will_do_unless_it_is_another_users(tmp_path, arrays, monkeypatch):
    (tmp_path / ".out.gdsload-convert").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(OptionError, match="is another user's, who could exchange its parts"):
            do(arrays, tmp_path / "out")
    assert do(arrays, tmp_path / "out").samples == ROWS
    assert sorted(os.listdir(tmp_path)) == ["out", "x.npy"]


def test_a_folder_that_all_may_write_to_is_refused_and_none_is_made(tmp_path, arrays):
    stage = tmp_path / ".out.gdsload-convert"
    stage.mkdir()
    stage.chmod(0o777)
    with pytest.raises(OptionError, match="all users may write to the folder .* and could exchange its parts"):
        do(arrays, tmp_path / "out")
    assert os.listdir(stage) == []
    stage.rmdir()
    modes = []
    before = os.umask(0)
    try:
        noted = {"progress": lambda *_: modes.append(stage.stat().st_mode & 0o777)}
        gdsload.convert(arrays, tmp_path / "out", workers=1, **noted)
    finally:
        os.umask(before)
    assert set(modes) == {0o775}


def test_a_plan_with_a_hole_takes_no_memory(tmp_path, arrays):
    stage = tmp_path / ".out.gdsload-convert"
    stage.mkdir()
    (stage / "lock").touch()
    (stage / "plan.json").write_text("{")
    os.truncate(stage / "plan.json", 2**28)
    tracemalloc.start()
    try:
        assert do(arrays, tmp_path / "out").samples == ROWS
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()


def test_a_folder_that_a_killed_conversion_has_left_is_its_own(tmp_path, arrays):
    """Half a part, half a plan, and one that is none, a shuffle that was begun, an exchange without `renameat2`."""
    stage = tmp_path / ".out.gdsload-convert"
    half = ".part-000001.gdsload-0123456789ab"
    for name in ("part-000000", half, f"{half}.old", "ordered"):
        (stage / name).mkdir(parents=True)
        (stage / name / "shard-00000.safetensors").write_bytes(b"half")
    for name in ("lock", "plan.json.new", "part-000000.json.new", f"{half}.lock"):
        (stage / name).write_bytes(b"{")
    (stage / "plan.json").write_text("[" * 100_000)
    assert do(arrays, tmp_path / "out").samples == ROWS
    assert sorted(os.listdir(tmp_path)) == ["out", "x.npy"]


def bad_from(number):
    rows = [str(n) if n < number else "oops" for n in range(ROWS)]
    return "n\n" + "\n".join(rows) + "\n"


def test_with_nothing_finished_the_corrected_command_begins_anew(tmp_path):
    (tmp_path / "t.csv").write_text(bad_from(50))
    with pytest.raises(ConversionError, match="oops"):
        gdsload.convert(tmp_path / "t.csv", tmp_path / "out", types={"n": "int"}, workers=1)
    report = gdsload.convert(tmp_path / "t.csv", tmp_path / "out", types={"n": "str"}, workers=1)
    assert (report.samples, report.resumed) == (ROWS, 0)
    assert sorted(os.listdir(tmp_path)) == ["out", "t.csv"]


def test_what_is_finished_is_never_thrown_away_unasked(tmp_path):
    (tmp_path / "t.csv").write_text(bad_from(90))
    files = {"source": tmp_path / "t.csv", "out": tmp_path / "out", "workers": 1, "shard_bytes": 80}
    with pytest.raises(ConversionError, match="oops"):
        gdsload.convert(**files, types={"n": "int"})
    finished = tree(tmp_path)
    assert [name for name in finished if name.endswith("000000.json")]
    for other in ({"types": {"n": "str"}}, {"types": {"n": "int"}, "shard_bytes": 81}):
        with pytest.raises(OptionError, match=r"was interrupted: .*restart=True"):
            gdsload.convert(**files | other)
    assert tree(tmp_path) == finished
    report = gdsload.convert(**files, types={"n": "str"}, restart=True)
    assert (report.samples, report.resumed) == (ROWS, 0)


def failing(code):
    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(tmp_path, arrays, monkeypatch, code):
    monkeypatch.setattr(fcntl, "flock", failing(code))
    do(arrays, tmp_path / "out")
    assert len(gdsload.ShardDataset(tmp_path / "out")) == ROWS
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_a_lock_that_fails_and_a_folder_that_cannot_be_looked_at(tmp_path, arrays, monkeypatch):
    stage, lock, scan = tmp_path / ".out.gdsload-convert", fcntl.flock, os.scandir
    stage.mkdir()
    fail = failing(errno.EIO)
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", lambda fd, how: (fail if how & fcntl.LOCK_NB else lock)(fd, how))
        with pytest.raises(WriteError, match=r"\.out\.gdsload-convert: the lock cannot be taken: Input/output error"):
            do(arrays, tmp_path / "out")
    monkeypatch.setattr(os, "scandir", lambda at=".": (fail if str(at) == str(stage) else scan)(at))
    with pytest.raises(ReadError, match=r"\.out\.gdsload-convert: what an interrupted run has left cannot be read"):
        do(arrays, tmp_path / "out")


def test_what_power_loss_leaves_is_known_for_a_conversion(tmp_path, arrays, monkeypatch):
    """The lock is there for good before anything else, and goes after it; the plan goes before the parts."""
    stage, real, found = tmp_path / ".out.gdsload-convert", os.fsync, []

    def fsync(fd):
        if os.readlink(f"/proc/self/fd/{fd}") == str(stage):
            found.append(os.listdir(stage))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    do(arrays, tmp_path / "out")
    assert found[0] == found[-1] == ["lock"]
    assert "part-000000.json" in found[-2]
    assert "plan.json" not in found[-2]
