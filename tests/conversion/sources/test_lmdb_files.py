"""LMDB environments, written by the library that owns the format, and damaged ones."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gdsload
from gdsload.conversion.sources.lmdb_files import LmdbSource
from gdsload.errors import FormatError, OptionError
from tests.conversion.contents import npy, picture
from tests.conversion.reading import items_of

lmdb = pytest.importorskip("lmdb")


def write(path, values, *, database=None, subdir=True, **options):
    with lmdb.open(str(path), map_size=2**28, max_dbs=4, subdir=subdir) as env:
        found = None if database is None else env.open_db(database, **options)
        with env.begin(write=True, db=found) as transaction:
            for key, value in values.items():
                transaction.put(key, value)
    return str(path)


KEYS = st.binary(min_size=1, max_size=300)
VALUES = st.one_of(st.binary(max_size=40), st.integers(0, 20_000).map(lambda size: bytes([size % 251]) * size))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=200), st.sets(st.integers(0, 199)))
def test_all_that_is_in_it_in_the_order_of_the_library(tmp_path_factory, samples_in, values, gone):
    path = write(tmp_path_factory.mktemp("l"), values)
    with lmdb.open(path, map_size=2**28) as env:
        with env.begin(write=True) as transaction:  # pages that were freed are used again
            for number in gone:
                transaction.delete(sorted(values)[number % len(values)])
        with env.begin() as transaction:
            expected = [{"key": bytes(key), "value": bytes(value)} for key, value in transaction.cursor()]
    source = LmdbSource(path)
    if expected:
        assert samples_in(source, 4096) == samples_in(source) == expected
        assert sum(part.samples for part in source.parts(4096)) == len(expected)
    else:
        with pytest.raises(FormatError, match="not one key"):
            source.parts(4096)


def test_a_large_one_without_a_lock(tmp_path, samples_in):
    values = {b"%06d" % number: os.urandom(number % 500) for number in range(1000)}
    path = write(tmp_path / "l", values)
    (tmp_path / "l" / "lock.mdb").unlink()
    os.chmod(tmp_path / "l" / "data.mdb", 0o400)
    source = LmdbSource(path, with_key=False)
    assert len(source.parts(2**16)) > 2
    for target in (1, 2**16, 2**30):
        assert [one["value"] for one in samples_in(source, target)] == list(values.values())
    assert os.listdir(path) == ["data.mdb"]


def test_an_environment_of_named_databases_is_refused(tmp_path, samples_in):
    """Values of the same length that describe none are values."""
    values = {b"a": bytes(48), b"a\0b": bytes(48), b"z" * 400: bytes(48), b"b": bytes(47)}
    path = write(tmp_path / "l", values)
    assert {one["key"]: one["value"] for one in samples_in(LmdbSource(path))} == values
    write(path, {b"x": b"3"}, database=b"one")
    with pytest.raises(FormatError, match=r"it holds a database with a name, 'one'\. Copy what is"):
        samples_in(LmdbSource(path))


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "l", {b"a": b"b"})
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(OptionError, match=r'needs lmdb, which cannot be imported.*pip install "gdsload\[convert\]"'):
        LmdbSource(path).parts(1)


def test_values_are_decoded_as_asked(tmp_path, samples_in):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    made = {"npy": npy(pixels), "image": picture(pixels), "text": "é".encode()}
    paths = {name: write(tmp_path / name, {b"k": value}) for name, value in made.items()}
    found = {
        name: samples_in(LmdbSource(paths[name], decode=name, with_key=False))[0]["value"]
        for name in ("npy", "image", "text")
    }
    assert np.array_equal(found["npy"], pixels)
    assert np.array_equal(found["image"], pixels.transpose(2, 0, 1))
    assert found["text"] == "é"
    small = LmdbSource(paths["image"], decode="image", size=4, mode="L")
    assert samples_in(small)[0]["value"].shape == (1, 4, 4)


@pytest.mark.parametrize("decode", ["npy", "image", "text"])
def test_values_that_are_something_else_are_samples_at_fault(tmp_path, decode):
    good = {"npy": npy(np.zeros(3)), "text": b"a"}.get(decode, b"")
    source = LmdbSource(write(tmp_path / "l", {b"a": good, b"b": b"\xff\xfe\x80", b"c": b""}), decode=decode)
    items = items_of(source, 1)
    assert len(items) == 3
    with pytest.raises(FormatError, match="b'b'"):
        items[1].make()


def test_damaged_files(tmp_path, damaged_in_a_process):
    path = write(tmp_path / "l", {b"%04d" % number: bytes(number * 7 % 9000) for number in range(60)})
    damaged_in_a_process(tmp_path / "l" / "data.mdb", path)
    for content, match in ((b"", "it is empty"), (b"\0" * 8192, "LMDB file cannot be read: .*MDB_INVALID")):
        (tmp_path / "l" / "data.mdb").write_bytes(content)
        with pytest.raises(FormatError, match=match):
            LmdbSource(path).parts(1)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_file_that_is_cut_short_is_not_mapped(tmp_path, workers):
    """To touch a page that is not there ends a process."""
    path = write(tmp_path / "l", {b"%06d" % number: bytes(100) for number in range(4000)})
    os.truncate(tmp_path / "l" / "data.mdb", 24 * 4096)
    with pytest.raises(FormatError, match="the LMDB file cannot be read: it is cut short"):
        gdsload.convert(path, tmp_path / "out", workers=workers)


def test_converted_in_processes_and_in_threads(tmp_path):
    """Threads share what the library opens once."""
    values = {b"%04d" % number: os.urandom(1000) for number in range(1000)}
    path = write(tmp_path / "l", values)
    found = []
    with ThreadPoolExecutor(4) as executor:
        for number, how in enumerate(({"workers": 1}, {"workers": 2}, {"executor": executor})):
            gdsload.convert(path, tmp_path / f"{number}", shard_bytes=50_000, **how)
            found.append(gdsload.ShardDataset(tmp_path / f"{number}"))
    assert len({one.digest for one in found}) == 1
    assert found[0].column("value") == list(values.values())
