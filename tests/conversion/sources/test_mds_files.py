"""MDS datasets that their own library wrote (tools/make_mds.py), and hostile ones."""

import copy
import gzip
import hashlib
import json
import pickle
import shutil
import struct

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import gdsload
from gdsload.conversion.sources.mds_files import MdsSource, decoder
from gdsload.conversion.sources.pictures import ImageForm
from gdsload.errors import FormatError
from tests.conversion.reading import made_by
from tools import make_mds

DATA = make_mds.FOLDER
PACKERS = [packer.partition(":")[0] for packer in make_mds.PACKERS]


def plain(value):
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


@pytest.mark.parametrize("target", [1, 6000, 2**20])
def test_numbers_arrays_and_texts(target):
    source = pickle.loads(pickle.dumps(MdsSource(str(DATA / "numbers"))))
    found = made_by(source, target)
    for mine, theirs in zip(found, make_mds.numbers(), strict=True):
        assert set(mine) == set(theirs)
        for name, value in theirs.items():
            if isinstance(value, np.ndarray | np.generic):
                assert (mine[name].dtype, mine[name].shape) == (value.dtype, value.shape)
        theirs |= {"str_decimal": str(theirs["str_decimal"]), "json": json.dumps(theirs["json"])}
        assert {name: plain(value) for name, value in mine.items()} == {n: plain(v) for n, v in theirs.items()}
    assert [part.where for part in source.parts(6000)] == [(0, 3), (3, 5)]


@pytest.mark.parametrize("packer", PACKERS)
def test_packed_shards(packer):
    source = MdsSource(str(DATA / packer))
    expected = [{"n": sample["int32"], "str": sample["str"]} for sample in make_mds.numbers()]
    assert len(source.parts(1)) > 1
    assert made_by(source) == expected


def test_images():
    found = made_by(MdsSource(str(DATA / "images"), mode="keep"))
    for mine, theirs in zip(found, make_mds.images(), strict=True):
        for name in ("png", "pil"):
            assert np.array_equal(mine[name], theirs[name].transpose(2, 0, 1))
        assert np.array_equal(mine["grey"], theirs["grey"][None])
        lossy = mine["jpeg"].astype(int) - theirs["jpeg"].transpose(2, 0, 1)
        assert np.abs(lossy).mean() < 10
    assert {sample["grey"].shape[0] for sample in made_by(MdsSource(str(DATA / "images")))} == {1}
    assert {sample["grey"].shape[0] for sample in made_by(MdsSource(str(DATA / "images"), mode="RGB"))} == {3}


def test_pickles_are_refused_but_can_be_left_out():
    path = str(DATA / "pickles")
    with pytest.raises(FormatError, match="'object' is stored as pickles"):
        MdsSource(path).only(["n", "object"]).parts(1)
    with pytest.raises(FormatError, match=r"'more' has the encoding 'list\[png\]'"):
        MdsSource(path).parts(1)
    assert made_by(MdsSource(path).only(["n"])) == [{"n": 1}]


def test_unpacked_shards_come_first_and_merged_ones_are_deeper(tmp_path):
    """As `keep_zip` and `merge_index` of the library leave them."""
    shutil.copytree(DATA / "gz", tmp_path / "all" / "part")
    tree = json.loads((DATA / "gz" / "index.json").read_text())
    for shard in tree["shards"]:
        for kind in ("raw_data", "zip_data"):
            shard[kind]["basename"] = "part/" + shard[kind]["basename"]
    (tmp_path / "all" / "index.json").write_text(json.dumps(tree))
    expected = made_by(MdsSource(str(DATA / "gz")))
    assert made_by(MdsSource(str(tmp_path / "all"))) == expected
    for packed in list((tmp_path / "all" / "part").glob("*.gz")):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    assert made_by(MdsSource(str(tmp_path / "all"))) == expected


def changed(tmp_path, kind, change):
    """A copy of a dataset whose index somebody has changed."""
    folder = tmp_path / "d"
    shutil.copytree(DATA / kind, folder)
    tree = json.loads((folder / "index.json").read_text())
    change(tree["shards"][0], tree)
    (folder / "index.json").write_text(json.dumps(tree))
    return MdsSource(str(folder))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda shard, tree: tree.update(version=3), "none of MDS shards: version 3"),
        (lambda shard, tree: tree.pop("shards"), "shards"),
        (lambda shard, tree: tree.update(shards=[7]), "a value in it is not of the kind that it must be"),
        (lambda shard, tree: shard.update(format="jsonl"), "format 'jsonl'"),
        (lambda shard, tree: shard.update(samples=-1), "-1 is no number"),
        (lambda shard, tree: shard.update(samples=4), "does not begin"),
        (lambda shard, tree: shard.update(column_names=["n"]), "argument 2 is longer"),
        (lambda shard, tree: shard.update(column_names=["n", "n"]), "two columns"),
        (lambda shard, tree: shard.update(column_encodings=["int32", "object"]), "encoding 'object'"),
        (lambda shard, tree: shard["zip_data"].update(bytes=3), "the index says 3"),
        (lambda shard, tree: shard["raw_data"].update(bytes=100), "not unpack to the 100 bytes that the index says"),
        (lambda shard, tree: shard.update(compression="snappy"), "packed with 'snappy', which is not read"),
        (lambda shard, tree: shard.update(compression="bz2"), "bz2"),
    ],
)
def test_an_index_that_is_wrong(tmp_path, change, reason):
    with pytest.raises(FormatError, match=reason):
        made_by(changed(tmp_path, "gz", change))


@pytest.mark.parametrize("kind", ["numbers", *PACKERS])
def test_damaged_anywhere_is_read_or_refused(tmp_path, survives_damage, kind):
    """And a packed shard never unpacks to more than the index says."""
    source = changed(tmp_path, kind, lambda shard, tree: None)
    (path,) = (tmp_path / "d").glob("shard.00001*")
    survives_damage(path, lambda: MdsSource(source.path), 20)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match="the index says"):
        made_by(source)
    for nbytes in (10, 5000) if kind != "numbers" else ():
        shutil.rmtree(tmp_path / "d")
        with pytest.raises(FormatError, match="cannot be read"):
            made_by(changed(tmp_path, kind, lambda shard, tree, n=nbytes: shard["raw_data"].update(bytes=n)))


@given(
    encoding=st.sampled_from(
        ["ndarray", "ndarray:int16", "ndarray:int16:2,3", "ndarray::2,3", "int8", "pil", "str_int"]
    ),
    content=st.binary(max_size=40),
)
def test_any_bytes_are_a_value_or_a_value_error(encoding, content):
    try:
        found = decoder(encoding, "x", ImageForm("keep"), "file")(content)
    except ValueError:
        return
    found = found["x"] if isinstance(found, dict) else found
    assert isinstance(found, np.ndarray | np.generic | int)


@pytest.mark.parametrize(
    ("encoding", "content", "reason"),
    [
        ("ndarray", b"\x10" + bytes([2 << 2 | 3]) + struct.pack("<QQ", 2**40, 2**40), "has .* bytes, but 0 are there"),
        ("ndarray", b"\x07\x04\x01", "unknown element type"),
        ("ndarray:int8", bytes([3 << 2, 2, 2]), "ends too early"),
        ("ndarray:int8", bytes([1 << 2, 0]), "no values"),
        ("pil", struct.pack("<III", 2**31, 2**31, 1) + b"L" + bytes(10), "cannot have 10 bytes"),
        ("pil", struct.pack("<III", 1, 1, 3) + b"F;1" + bytes(10), "mode 'F;1'"),
        ("pil", struct.pack("<III", 1, 1, 2**31) + b"L", "ends too early"),
        ("jpeg", b"\xff\xd8", "cannot be decoded"),
    ],
)
def test_values_that_promise_too_much(encoding, content, reason):
    with pytest.raises(ValueError, match=reason):
        decoder(encoding, "x", ImageForm("keep"), "file")(content)


@pytest.mark.parametrize("details", ["int3", "int8:0", "int8:-1,-1", "int8:a", ":2,,"])
def test_encodings_that_are_none(details):
    with pytest.raises(FormatError, match="which is none"):
        decoder(f"ndarray:{details}", "x", ImageForm(), "file")


def test_a_sample_that_is_damaged_is_alone(tmp_path, left_out):
    columns = {"column_names": ["a", "b"], "column_encodings": ["str", "int8"], "column_sizes": [None, 1]}
    values = [struct.pack("<I", 1) + b"x\x07", struct.pack("<I", 9) + b"x\x07", b"", struct.pack("<I", 1) + b"\xff\x07"]
    places = np.cumsum([24, *map(len, values)])
    content = struct.pack("<6I", 4, *places) + b"".join(values)

    def change(shard, _):
        shard |= columns | {"samples": 4}
        shard["raw_data"]["bytes"] = len(content)

    source = changed(tmp_path, "pickles", change)
    (path,) = (tmp_path / "d").glob("*.mds")
    path.write_bytes(content)
    reasons = ["its values 14", "its values 6", "field 'a' cannot be decoded"]
    named = {f"{path.name}, sample {number}": reason for number, reason in enumerate(reasons, 1)}
    assert len(left_out(source, named)) == 1


def test_a_shard_without_samples_is_passed_over(tmp_path, converted):
    """As the library writes one where the first sample is larger than a shard may be."""

    def insert(shard, tree):
        empty = copy.deepcopy(shard) | {"samples": 0}
        empty["raw_data"] |= {"basename": "empty.mds", "bytes": 8}
        tree["shards"].insert(0, empty)

    source = changed(tmp_path, "pickles", insert)
    (tmp_path / "d" / "empty.mds").write_bytes(struct.pack("<2I", 0, 8))
    assert converted(source.only(["n"]), shard_bytes=1).column("n").tolist() == [1]


HASHES = {
    "sha1": hashlib.sha1, "blake2s": hashlib.blake2s, "xxh64": xxhash.xxh64, "xxh3_64": xxhash.xxh3_64,
}  # fmt: skip


def hashed(folder, packer=None, algorithms=("sha1",), raw=None):
    """A copy of a dataset with the hashes that `streaming.MDSWriter(hashes=...)` puts into the index."""
    shutil.copytree(DATA / (packer or "numbers"), folder)
    tree = json.loads((folder / "index.json").read_text())
    for shard in tree["shards"]:
        described = shard["zip_data" if packer else "raw_data"]
        content = (folder / described["basename"]).read_bytes()
        known = {name: HASHES[name](content).hexdigest() if name in HASHES else "00" for name in algorithms}
        described["hashes"] = known
        if packer:
            shard["raw_data"]["hashes"] = {"sha1": raw or hashlib.sha1(gzip.decompress(content)).hexdigest()}
    (folder / "index.json").write_text(json.dumps(tree))
    return folder


@pytest.mark.parametrize("packer", [None, "gz"])
@pytest.mark.parametrize("algorithms", [("sha1", "xxh64"), ("xxh3_64",), ("blake2s",)])
def test_hashes_of_the_index_are_compared(tmp_path, packer, algorithms):
    folder = hashed(tmp_path / "d", packer, algorithms)
    assert len(made_by(MdsSource(str(folder)))) == len(list(make_mds.numbers()))
    file = next(folder.glob("shard.00001.mds*"))
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    said = rf"{file.name}: .*its {algorithms[0]} is \w+, but the index says \w+\. Copy it again"
    with pytest.raises(FormatError, match=said):
        gdsload.convert(folder, tmp_path / "out", workers=1, on_error="skip", fields=["str"])
    assert not (tmp_path / "out").exists()


def test_hashes_of_what_was_packed_are_compared_and_unknown_ones_refused(tmp_path):
    with pytest.raises(FormatError, match=r"its sha1 is \w+, but the index says 00"):
        made_by(MdsSource(str(hashed(tmp_path / "raw", "gz", raw="00"))))
    with pytest.raises(FormatError, match="unsupported hash type crc99"):
        made_by(MdsSource(str(hashed(tmp_path / "unknown", algorithms=("crc99", "sha1")))))
