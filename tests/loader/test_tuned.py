"""Settings that were measured: who takes them, who does not, and files that are no good."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import stat
import threading
import warnings
from dataclasses import asdict, replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gdsload
from gdsload.loader import tuned
from gdsload.loader.tuned import Key, save, tuned_file

CPU = torch.device("cpu")
FOUND = {"prefetch_bytes": 2**20, "pinned_bytes": 2**21, "read_threads": 3}


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(tuned, "_warned", set())
    return tmp_path / "config"


def taken(path, **options):
    """What of its options a loader has from the file."""
    with gdsload.DataLoader(path, 64, device="cpu", **options) as loader:
        return {name: getattr(loader._options, name) for name in FOUND}, repr(loader)


def write(text):
    os.makedirs(os.path.dirname(tuned_file()), exist_ok=True)
    with open(tuned_file(), "w", encoding="utf-8") as file:
        file.write(text)


def test_a_loader_takes_what_was_saved_and_says_so(plain):
    before, shown = taken(plain)
    assert "tuned" not in shown
    save(Key.of(str(plain), CPU), FOUND, {})
    found, shown = taken(plain)
    assert found == FOUND
    assert "read_threads=3 (tuned)" in shown
    assert taken(plain, tuned=False) == (before, taken(plain, tuned=False)[1])
    assert "(tuned)" not in taken(plain, tuned=False)[1]


def test_what_is_given_wins(plain):
    save(Key.of(str(plain), CPU), FOUND, {})
    given_ones = {"prefetch_bytes": "3MiB", "pinned_bytes": 2**24, "read_threads": 7}
    for name, value in given_ones.items():
        found, shown = taken(plain, **{name: value})
        assert found == FOUND | {name: 3 * 2**20 if value == "3MiB" else value}
        assert f"{name}=" not in shown
    assert taken(plain, read_threads=None)[0]["read_threads"] is None


@pytest.mark.parametrize(
    "other", [{"gpu": "Another"}, {"cores": 10**6}, {"file_system": "x"}, {"storage": "x"}, {"version": "0.0.1"}]
)
def test_it_counts_for_what_it_was_measured_on_alone(plain, other):
    before = taken(plain)
    save(replace(Key.of(str(plain), CPU), **other), FOUND, {})
    assert taken(plain) == before


@pytest.mark.parametrize("shuffle", [False, "full", "block"])
@pytest.mark.parametrize("mmap", [True, False])
def test_the_batches_are_the_same(rich, shuffle, mmap):
    def batches():
        with gdsload.DataLoader(rich, 8, shuffle, device="cpu", mmap=mmap, with_index=True, ragged="offsets") as loader:
            return [
                {name: value if isinstance(value, list) else [part.tolist() for part in parts(value)]
                 for name, value in batch.items()} | {"bytes": batch["image"].numpy().tobytes()}
                for batch in loader
            ]  # fmt: skip

    def parts(value):
        return [(part if part.dtype.itemsize > 1 else part.view(torch.uint8))
                for part in (value if isinstance(value, tuple) else (value,))]  # fmt: skip

    expected = str(batches())
    save(Key.of(str(rich), CPU), {"prefetch_bytes": 5000, "read_threads": 2}, {})
    assert str(batches()) == expected


def test_so_many_threads_read_as_were_asked_for(plain):
    def reading():
        return sum(thread.name.startswith("gdsload-host-") for thread in threading.enumerate())

    with gdsload.DataLoader(plain, 64, device="cpu", mmap=False, read_threads=3) as loader:
        before = reading()
        next(iter(loader))
        assert reading() - before == 3
    for wrong in (0, -1, 513, 1.5, "8"):
        with pytest.raises(gdsload.OptionError, match="read_threads"):
            gdsload.DataLoader(plain, 64, read_threads=wrong)
    with pytest.raises(gdsload.OptionError, match="tuned"):
        gdsload.DataLoader(plain, 64, tuned="yes")


def test_the_file_is_private_and_keeps_other_entries(plain, config):
    key = Key.of(str(plain), CPU)
    other = replace(key, cores=10**6)
    save(other, {"read_threads": 5}, {})
    file = save(key, {"read_threads": 4}, {"note": "x"})
    assert save(key, FOUND, {}) == file == str(config / "gdsload/tuned.json")
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert os.listdir(config / "gdsload") == ["tuned.json"]
    entries = json.loads((config / "gdsload/tuned.json").read_text())["entries"]
    assert [(entry["key"], entry["settings"]) for entry in entries] == [
        (asdict(other), {"read_threads": 5}),
        (asdict(key), FOUND),
    ]


def test_values_that_no_file_may_give_are_not_written(plain):
    with pytest.raises(gdsload.OptionError, match="prefetch_bytes is"):
        save(Key.of(str(plain), CPU), {"prefetch_bytes": 2**41}, {})
    assert not os.path.exists(tuned_file())


def _save(number):
    save(Key(None, number, "ext4", "/dev/x"), {"read_threads": 4}, {})


def test_who_saves_at_the_same_time_loses_nothing():
    with multiprocessing.get_context("fork").Pool(4) as pool:
        pool.map(_save, range(1, 41), chunksize=1)
    with open(tuned_file(), encoding="utf-8") as file:
        assert {entry["key"]["cores"] for entry in json.load(file)["entries"]} == set(range(1, 41))


def test_a_dataset_that_was_moved_says_so_itself(plain, tmp_path):
    save(Key.of(str(plain), CPU), FOUND, {})
    copy = shutil.copytree(plain, tmp_path / "copy")
    dataset = gdsload.ShardDataset(copy)
    os.rename(copy, tmp_path / "elsewhere")
    loader = gdsload.DataLoader(dataset, 64, device="cpu")
    with pytest.raises(gdsload.GdsloadError):
        next(iter(loader))


def test_a_write_that_fails_leaves_the_old_file(plain, config, monkeypatch):
    key = Key.of(str(plain), CPU)
    save(key, FOUND, {})
    before = (config / "gdsload/tuned.json").read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tuned.os, "rename", fail)
    with pytest.raises(gdsload.WriteError, match="cannot be written"):
        save(key, {}, {})
    assert os.listdir(config / "gdsload") == ["tuned.json"]
    assert (config / "gdsload/tuned.json").read_bytes() == before


def entry(**settings):
    return json.dumps({"format": "gdsload-tuned-1", "entries": [{"key": {}, "settings": settings}]})


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ('{"format": 1, "format": 1}', "occurs twice"),
        ("[" * 100_000, "no JSON"),
        ("[]", "another format"),
        ('{"format": "gdsload-tuned-9", "entries": []}', "another format"),
        ('{"format": "gdsload-tuned-1", "entries": [1]}', "1 is no entry"),
        ('{"format": "gdsload-tuned-1", "entries": [{"key": {}}]}', "None are no settings"),
        (entry(shuffle=1), "'shuffle' cannot be 1"),
        (entry(arena_bytes=2**30), "'arena_bytes' cannot be"),
        (entry(read_threads=0), "'read_threads' cannot be 0"),
        (entry(read_threads=513), "'read_threads' cannot be 513"),
        (entry(read_threads=True), "'read_threads' cannot be True"),
        (entry(prefetch_bytes="1GiB"), "'prefetch_bytes' cannot be"),
        (entry(prefetch_bytes=2**41), "'prefetch_bytes' cannot be"),
        (" " * (2**20 + 1), "more than"),
    ],
)
def test_a_file_that_is_no_good_is_left_aside_with_one_warning(plain, text, match):
    before = taken(plain)
    write(text)
    with pytest.warns(UserWarning, match=match) as noted:
        found = [taken(plain), taken(plain)]
    assert found == [before, before]
    assert len(noted) == 1
    with pytest.raises(gdsload.FormatError, match=match):
        save(Key.of(str(plain), CPU), FOUND, {})
    with open(tuned_file(), encoding="utf-8") as file:
        assert file.read() == text


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)))  # fmt: skip
def test_no_file_keeps_a_loader_from_being_made(plain, entries):
    write(json.dumps({"format": "gdsload-tuned-1", "entries": entries}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, _ = taken(plain)
    assert found["read_threads"] is None


def test_another_users_file_and_what_is_no_file_are_left_aside(plain, monkeypatch):
    save(Key.of(str(plain), CPU), FOUND, {})
    monkeypatch.setattr(tuned.os, "geteuid", lambda: os.stat(tuned_file()).st_uid + 1)
    real = os.fstat

    def foreign(fd):
        found = list(real(fd))
        found[stat.ST_UID] = 12345
        return os.stat_result(found)

    monkeypatch.setattr(tuned.os, "fstat", foreign)
    with pytest.warns(UserWarning, match="another user"):
        assert taken(plain)[0]["read_threads"] is None
    monkeypatch.undo()


def test_a_pipe_is_not_waited_for(plain):
    os.makedirs(os.path.dirname(tuned_file()))
    os.mkfifo(tuned_file())
    with pytest.warns(UserWarning, match="no regular file"):
        assert taken(plain)[0]["read_threads"] is None


def test_where_the_file_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for base in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", base)
        assert tuned_file() == str(tmp_path / ".config/gdsload/tuned.json")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert tuned_file() == str(tmp_path / ".config/gdsload/tuned.json")
