"""LitData chunks that their own library wrote (tools/make_litdata.py), and hostile ones."""

import json
import pickle
import shutil

import numpy as np
import pytest
import torch

from gdsload.conversion.sources.litdata_chunks import LitDataSource
from gdsload.errors import FormatError
from tests.conversion.reading import items_of, made_by, plain
from tools import make_litdata

DATA = make_litdata.FOLDER


def same(mine, theirs):
    """Return whether a value is that which was written, its element type and shape included."""
    if isinstance(theirs, torch.Tensor | np.ndarray):
        array = np.asarray(theirs)
        return (mine.dtype, mine.shape, mine.tolist()) == (array.dtype, array.shape, array.tolist())
    return mine == theirs


@pytest.mark.parametrize("target", [1, 2**20])
def test_values_of_every_kind(target):
    source = pickle.loads(pickle.dumps(LitDataSource(str(DATA / "leaves"))))
    assert [part.where for part in source.parts(target)] == ([(0, 1), (1, 2)] if target == 1 else [(0, 2)])
    for mine, theirs in zip(made_by(source, target), make_litdata.leaves(), strict=True):
        assert list(mine) == list(theirs)
        for name, value in theirs.items():
            assert same(mine[name], value), name


def test_lists_nested_dictionaries_and_single_values():
    for mine, theirs in zip(made_by(LitDataSource(str(DATA / "pairs"))), make_litdata.pairs(), strict=True):
        assert list(mine) == ["0", "1"]
        assert all(same(mine[str(number)], value) for number, value in enumerate(theirs))
    found = made_by(LitDataSource(str(DATA / "nested")))
    assert [plain(one) for one in found] == [{"n.a": [[number]]} for number in range(make_litdata.COUNT)]
    found = made_by(LitDataSource(str(DATA / "single")))
    assert [sample["0"].tolist() for sample in found] == [list(range(number)) for number in range(make_litdata.COUNT)]


def test_plain_rows_are_in_tables(converted):
    items = items_of(LitDataSource(str(DATA / "rows")), 1)
    assert [item.key for item in items] == ["chunk-0-0.bin, rows 0 to 3", "chunk-0-1.bin, rows 0 to 2"]
    dataset = converted(DATA / "rows")
    assert [plain(one) for one in dataset] == list(make_litdata.rows())


def test_tokens_can_be_packed(converted):
    found = made_by(LitDataSource(str(DATA / "tokens")))
    assert all(same(mine["tokens"], theirs) for mine, theirs in zip(found, make_litdata.tokens(), strict=True))
    dataset = converted(DATA / "tokens", pack={"field": "tokens", "length": 8})
    row = torch.cat(list(make_litdata.tokens()))
    assert torch.equal(torch.cat([dataset[n]["tokens"] for n in range(len(dataset))]), row[: len(row) // 8 * 8])


@pytest.mark.parametrize("length", [2**31, 10, 0])
def test_a_table_that_is_damaged(tmp_path, length):
    shutil.copytree(DATA / "rows", tmp_path / "d")
    path = tmp_path / "d" / "chunk-0-0.bin"
    content = path.read_bytes()
    path.write_bytes(content[:-12] + length.to_bytes(4, "little") + content[-8:])
    with pytest.raises(FormatError, match="the chunk cannot be read"):
        made_by(LitDataSource(str(tmp_path / "d")))


def test_images():
    for number, sample in enumerate(made_by(LitDataSource(str(DATA / "images")))):
        expected = make_litdata.picture(number).transpose(2, 0, 1)
        assert np.array_equal(sample["pil"], expected)
        assert np.abs(sample["jpeg"].astype(int) - expected).mean() < 10


def test_pickles_and_packed_chunks_are_refused():
    with pytest.raises(FormatError, match="'object' is stored as pickles"):
        LitDataSource(str(DATA / "pickles")).parts(1)
    with pytest.raises(FormatError, match="compression 'zstd'"):
        LitDataSource(str(DATA / "packed")).parts(1)


def changed(tmp_path, change):
    """A copy of a dataset whose index somebody has changed."""
    folder = tmp_path / "d"
    shutil.copytree(DATA / "pairs", folder)
    tree = json.loads((folder / "index.json").read_text())
    change(tree["chunks"][0], tree["config"])
    (folder / "index.json").write_text(json.dumps(tree))
    return LitDataSource(str(folder))


def spec(kind, context="null"):
    leaf = {"type": None, "context": None, "children_spec": []}
    return json.dumps([1, {"type": kind, "context": context, "children_spec": [leaf, leaf]}])


WRONG_KIND = "a value in it is not of the kind that it must be"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda chunk, config: chunk.update(filename=7), "a chunk is"),
        (lambda chunk, config: chunk.update(chunk_bytes=7), "the index says 7"),
        (lambda chunk, config: chunk.update(chunk_size=3), "does not begin"),
        (lambda chunk, config: chunk.update(chunk_size=-1), "a chunk is"),
        (lambda chunk, config: chunk.pop("chunk_size"), "it has no 'chunk_size'"),
        (lambda chunk, config: config.update(encryption={"algorithm": "fernet"}), "have encryption"),
        (lambda chunk, config: config.update(item_loader="ParquetLoader"), "item_loader 'ParquetLoader'"),
        (lambda chunk, config: config.update(data_format=["int"]), "argument 2 is shorter"),
        (lambda chunk, config: config.update(data_format=["int", "object"]), "stored as 'object'"),
        (lambda chunk, config: config.update(data_format=["int", "json"]), "form of LitData's own"),
        (lambda chunk, config: config.update(data_format=["int", 7]), WRONG_KIND),
        (lambda chunk, config: config.update(data_format=["int", "no_header_numpy:14"]), "element type 14"),
        (lambda chunk, config: config.update(data_spec=spec("collections.namedtuple", '"a.B"')), "not dictionaries"),
        (lambda chunk, config: config.update(data_spec=spec("builtins.dict", '["a", "a"]')), "not known"),
        (lambda chunk, config: config.update(data_spec=spec("builtins.dict", '["a"]')), "argument 2 is longer"),
        (lambda chunk, config: config.update(data_spec="[" * 100_000), "nested too deeply|Expecting"),
        (lambda chunk, config: config.update(data_spec=None), WRONG_KIND),
    ],
)
def test_an_index_that_is_wrong(tmp_path, change, reason):
    with pytest.raises(FormatError, match=reason):
        made_by(changed(tmp_path, change))


@pytest.mark.parametrize("kind", ["leaves", "pairs", "tokens", "rows"])
def test_damaged_anywhere_is_read_or_refused(tmp_path, survives_damage, kind):
    shutil.copytree(DATA / kind, tmp_path / "d")
    path = max((tmp_path / "d").glob("*.bin"))
    survives_damage(path, lambda: LitDataSource(str(tmp_path / "d")), 30)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match="the index says"):
        made_by(LitDataSource(str(tmp_path / "d")))


def test_a_sample_that_is_damaged_is_alone(tmp_path, left_out):
    shutil.copytree(DATA / "pairs", tmp_path / "d")
    path = tmp_path / "d" / "chunk-0-0.bin"
    content = bytearray(path.read_bytes())
    second = int.from_bytes(content[8:12], "little")
    content[second + 16 : second + 20] = b"\xff\xff\xff\xff"  # the element type of the tensor
    path.write_bytes(content)
    reasons = {"chunk-0-0.bin, sample 1": "field '1' cannot be decoded: it is of element type"}
    assert len(left_out(tmp_path / "d", reasons)) == make_litdata.COUNT - 1
