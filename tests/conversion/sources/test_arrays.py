"""NumPy arrays: which of them are fields."""

import ast
import io
import os
import threading
import time
import zipfile

import numpy as np
import pytest

import gdsload
from gdsload.conversion.sources.arrays import ArraySource, decode_npy, map_npy
from gdsload.errors import FormatError, OptionError, ReadError
from tests.conversion.contents import npy


@pytest.mark.parametrize("archive", [True, False])
def test_fields_are_chosen_before_lengths_are_compared(tmp_path, converted, archive):
    arrays = {"x": np.arange(6).reshape(3, 2), "y": np.arange(3.0), "mean": np.float64(0.5), "names": np.array([None])}
    place = tmp_path / ("t.npz" if archive else "d")
    if archive:
        np.savez(place, **arrays)
    else:
        place.mkdir()
        for name, array in arrays.items():
            np.save(place / f"{name}.npy", array)
    dataset = converted(place, fields=["y", "x"])
    assert list(dataset.schema) == ["y", "x"]
    assert dataset.read_batch([0, 1, 2])["x"].tolist() == arrays["x"].tolist()
    with pytest.raises(OptionError, match="there is no field 'means'. There are .*'mean'"):
        gdsload.convert(place, tmp_path / "no", fields=["means"])
    with pytest.raises(FormatError, match="different lengths.*choose those of one length, `fields="):
        gdsload.convert(place, tmp_path / "no", fields=["x", "y", "mean"])
    with pytest.raises(FormatError, match="never loaded"):
        gdsload.convert(place, tmp_path / "no")


def per_sample(folder, count=12, **names):
    """A file for each sample, in the folders that `names` has for them."""
    arrays = [np.random.default_rng(n).random((3 + n % 2, 2), np.float32) for n in range(count)]
    for number, array in enumerate(arrays):
        place = folder / names.get("folders", [""])[number % len(names.get("folders", [""]))]
        place.mkdir(parents=True, exist_ok=True)
        np.save(place / f"{number:05d}.npy", array)
    return arrays


def test_a_file_for_each_sample_is_never_taken_for_fields(tmp_path, converted):
    arrays = per_sample(tmp_path / "d")
    with pytest.raises(OptionError, match=r"12 arrays whose names differ in numbers alone\. Pass `each='file'`"):
        gdsload.convert(tmp_path / "d", tmp_path / "out", workers=1)
    dataset = converted(tmp_path / "d", each="file", shard_bytes=200)
    assert dataset.schema["array"].shape == (None, 2)
    assert all(np.array_equal(one["array"], array) for one, array in zip(dataset, arrays, strict=True))


def test_fields_that_are_numbered_may_be_meant(tmp_path, converted):
    for name in ("x1", "x2"):
        np.save(tmp_path / f"{name}.npy", np.arange(5))
    for options in ({"each": "row"}, {"fields": ["x1", "x2"]}):
        assert list(converted(tmp_path, **options).schema) == ["x1", "x2"]


def test_folders_of_files_are_classes(tmp_path, converted):
    arrays = per_sample(tmp_path / "d", folders=["b", "a"])
    with pytest.raises(OptionError, match=r"its 12 arrays are archives, or are in folders\. Pass `each='file'`"):
        gdsload.convert(tmp_path / "d", tmp_path / "out", workers=1)
    dataset = converted(tmp_path / "d", each="file")
    assert dataset.column("label").tolist() == [0] * 6 + [1] * 6
    assert dataset.metadata["classes"] == {"label": ["a", "b"]}
    pairs = zip(dataset, arrays[1::2] + arrays[::2], strict=True)
    assert all(np.array_equal(one["array"], array) for one, array in pairs)


def test_an_archive_for_each_sample(tmp_path, converted):
    (tmp_path / "d").mkdir()
    for number in range(5):
        np.savez_compressed(tmp_path / "d" / f"s{number}.npz", x=np.full((2, 2), number), y=number)
    found = converted(tmp_path / "d", each="file", fields=["y", "x"])
    assert list(found.schema) == ["y", "x"]
    assert (found.column("y").tolist(), found[3]["x"].tolist()) == (list(range(5)), [[3, 3]] * 2)
    content = bytearray((tmp_path / "d" / "s2.npz").read_bytes())
    content[60] ^= 1
    (tmp_path / "d" / "s2.npz").write_bytes(content)
    with pytest.raises(ReadError, match=r"s2.npz: the arrays cannot be read"):
        gdsload.convert(tmp_path / "d", tmp_path / "bad", each="file", workers=1)


ARRAYS = {
    "rows": np.arange(30_000, dtype=np.int32).reshape(1000, 30),
    "order": np.asfortranarray(np.random.default_rng(0).random((1000, 20))),
    "big endian": np.arange(1000, dtype=">i2"),
    "none": np.zeros((1000, 0), np.float32),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_is_what_numpy_loads(tmp_path, save, monkeypatch):
    save(tmp_path / "t.npz", **ARRAYS)
    unpacked = []
    read = zipfile.ZipFile.read
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda *given: unpacked.append(given[1]) or read(*given))
    report = gdsload.convert(tmp_path / "t.npz", tmp_path / "out", shard_bytes="32KiB", workers=2)
    assert report.shards > 5
    assert sorted(unpacked) == sorted(f"{name}.npy" for name in ARRAYS)  # once, and not by each part
    found = gdsload.ShardDataset(tmp_path / "out").read_batch(range(1000))
    assert all(np.array_equal(found[name], array) for name, array in ARRAYS.items())


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_damaged_archive_is_refused(tmp_path, save):
    save(tmp_path / "t.npz", **ARRAYS)
    whole = (tmp_path / "t.npz").read_bytes()
    where = [0, 5, 20, 40, *range(100, len(whole), len(whole) // 12), len(whole) - 40, len(whole) - 10]
    flipped = (whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :] for place in where)
    for content in [whole[: len(whole) // 2], *flipped]:
        (tmp_path / "bad.npz").write_bytes(content)
        try:
            (part,) = ArraySource(str(tmp_path / "bad.npz")).parts(2**30)
        except (FormatError, OptionError):  # a name that has changed makes another field
            continue
        # A time or an attribute of a member was hit, which nobody looks at.
        (item,) = ArraySource(str(tmp_path / "bad.npz")).read(part)
        assert all(np.array_equal(item.make()[name], array) for name, array in ARRAYS.items())


def test_what_is_no_array_in_an_archive(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.arange(3))
    with zipfile.ZipFile(tmp_path / "t.npz", "a") as archive:
        archive.writestr("notes.txt", "what they are")
    with pytest.raises(FormatError, match="member 'notes.txt' is no array"):
        gdsload.convert(tmp_path / "t.npz", tmp_path / "out", workers=1)
    assert gdsload.convert(tmp_path / "t.npz", tmp_path / "out", fields=["x"], workers=1).samples == 3


def test_a_file_without_an_array_that_is_wanted_may_be_skipped(tmp_path, left_out):
    """Of files that are samples: others have it."""
    (tmp_path / "in").mkdir()
    for number in range(8):
        np.savez(tmp_path / "in" / f"{number}.npz", x=np.array(number), **({"y": np.ones(2)} if number != 5 else {}))
    reasons = {str(tmp_path / "in" / "5.npz"): "there is no field 'y'"}
    dataset = left_out(tmp_path / "in", reasons, fields=["x", "y"], each="file")
    assert dataset.column("x").tolist() == [0, 1, 2, 3, 4, 6, 7]
    with pytest.raises(FormatError, match=r"not one sample .* there is no field 'z'"):
        gdsload.convert(tmp_path / "in", tmp_path / "no", each="file", fields=["z"], workers=1, on_error="skip")


@pytest.mark.parametrize("each", ["row", "file"])
def test_what_macos_packs_beside_arrays_is_passed_over(tmp_path, each):
    np.savez(tmp_path / "a.npz", _tmp=np.arange(3), y=np.arange(3))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        for name in ("__MACOSX/._x.npy", "._y.npy", ".DS_Store"):
            archive.writestr(name, b"\0\5\x16\7")
    report = gdsload.convert(tmp_path / "a.npz", tmp_path / "out", each=each, workers=1)
    assert list(gdsload.ShardDataset(tmp_path / "out").schema) == ["_tmp", "y"]
    assert [note[:36] for note in report.notes] == ["3 files or folders are passed over, "] * (each == "row")


DIGESTS = [bytes([n, 7, 0, 0]) for n in range(1, 4)] + [b"\1\2\3\4"]


@pytest.mark.parametrize("form", ["x.npy", "x.npz", "memory"])
def test_bytes_of_a_fixed_length_lose_zeros_with_a_note_and_raw_ones_none(tmp_path, form):
    for kind in "SV":
        array = np.array(DIGESTS, f"{kind}4")
        np.save(tmp_path / form, array) if form == "x.npy" else np.savez(tmp_path / form, x=array)
        report = gdsload.convert({"x": array} if form == "memory" else tmp_path / form, tmp_path / kind, workers=1)
        stored = DIGESTS if kind == "V" else [one.rstrip(b"\0") for one in DIGESTS]
        assert gdsload.ShardDataset(tmp_path / kind).column("x") == stored
        assert [note[:42] for note in report.notes] == ["'x' has bytes of a fixed length (4), of wh"] * (kind == "S")


@pytest.fixture
def uses(tmp_path):
    content = npy(np.arange(6).reshape(2, 3))
    (tmp_path / "x.npy").write_bytes(content)
    return [lambda: decode_npy(content), lambda: map_npy(str(tmp_path / "x.npy"))]


def test_one_thread_at_a_time_has_them_parsed(uses, monkeypatch):
    inside, most, parse = [], [], ast.literal_eval

    def slow(text):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.02)
        inside.pop()
        return parse(text)

    monkeypatch.setattr(ast, "literal_eval", slow)
    threads = [threading.Thread(target=use) for use in uses * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert most == [1] * 4


def test_a_process_that_is_forked_meanwhile_can_have_them_parsed(uses, monkeypatch, ends_in_a_child):
    begun, parse = threading.Event(), ast.literal_eval

    def slow(text):
        begun.set()
        time.sleep(0.2)
        return parse(text)

    with monkeypatch.context() as patch:
        patch.setattr(ast, "literal_eval", slow)
        thread = threading.Thread(target=uses[0])
        thread.start()
        assert begun.wait(20)
    assert ends_in_a_child(lambda: uses[0]() is not None or os._exit(2))
    thread.join(20)


def test_rows_of_no_bytes_are_refused_and_the_file_is_named(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (2**50, 0)})
    (tmp_path / "x.npy").write_bytes(header.getvalue())
    with pytest.raises(FormatError, match="rows of no bytes") as caught:
        gdsload.convert(tmp_path / "x.npy", tmp_path / "no")
    assert caught.value.file == str(tmp_path / "x.npy")


def test_raw_bytes_that_may_be_numbers_are_noted(tmp_path):
    np.save(tmp_path / "x.npy", np.array([b"\xc0?", b"\0@"], "V2"))  # as NumPy saves bfloat16
    (note,) = gdsload.convert(tmp_path / "x.npy", tmp_path / "out", workers=1).notes
    assert note.startswith("'x' has raw bytes (2), as which NumPy saves bfloat16 and float8, too")
