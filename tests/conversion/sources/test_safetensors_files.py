"""Shards and safetensors files as a source."""

from __future__ import annotations

import pickle

import pytest
import torch

import gdsload
from gdsload.conversion.sources.safetensors_files import SafetensorsSource
from gdsload.errors import DatasetNotFoundError, FormatError
from tests.conversion.reading import items_of

COUNT = 30


def write(path, samples, schema=None):
    with gdsload.ShardWriter(path, schema, shard_bytes=400) as writer:
        for sample in samples:
            writer.write(sample)
    return str(path)


def samples():
    return [
        {
            "x": torch.full((2, 3), float(n)).bfloat16(),
            "n": torch.tensor(n),
            "r": torch.arange(n % 4).reshape(-1, 1),
            "t": f"é{n}",
            "b": bytes([n]),
        }
        for n in range(COUNT)
    ]


def test_written_again_it_is_the_same(tmp_path):
    schema = {
        "x": gdsload.Field("bfloat16", (2, 3)), "n": gdsload.Field("int64"),
        "r": gdsload.Field("int64", (None, 1)), "t": "str", "b": "bytes",
    }  # fmt: skip
    source = SafetensorsSource(write(tmp_path / "in", samples(), schema))
    source = pickle.loads(pickle.dumps(source))
    parts = source.parts(1000)
    assert len(parts) > 3
    assert sum(part.samples for part in parts) == COUNT
    with gdsload.ShardWriter(tmp_path / "out", schema) as writer:
        for part in parts:
            for item in source.read(part):
                writer.write_batch(item.make())
    dataset = gdsload.ShardDataset(tmp_path / "out")
    for mine, theirs in zip(dataset, samples(), strict=True):
        assert (mine["t"], mine["b"]) == (theirs["t"], theirs["b"])
        assert all(torch.equal(mine[name], theirs[name]) for name in ("x", "n", "r"))


def test_files_of_others(tmp_path):
    save = pytest.importorskip("safetensors.torch").save_file
    save({"a": torch.arange(6.0).reshape(3, 2), "b": torch.arange(3)}, tmp_path / "x.safetensors")
    for path in (tmp_path, tmp_path / "x.safetensors"):
        (item,) = items_of(SafetensorsSource(str(path)))
        found = item.make()
        assert item.count == 3
        assert torch.equal(found["a"], torch.arange(6.0).reshape(3, 2))
        assert torch.equal(found["b"], torch.arange(3))


def test_what_it_says_of_itself_and_what_it_refuses(tmp_path):
    one = SafetensorsSource(write(tmp_path / "one", samples()[5:6])).describe()
    assert one != SafetensorsSource(write(tmp_path / "two", samples()[6:7])).describe()
    with pytest.raises(DatasetNotFoundError, match="no dataset"):
        SafetensorsSource(str(tmp_path / "none")).parts(1)
    with pytest.raises(FormatError, match="not one sample"):
        SafetensorsSource(write(tmp_path / "empty", [], {"x": gdsload.Field("int8")})).parts(1)
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(FormatError, match="bad.safetensors"):
        SafetensorsSource(str(tmp_path / "bad.safetensors")).parts(1)


def test_ragged_fields_stay_ragged(tmp_path, converted):
    """Also if the first samples happen to have one length."""
    schema = {"r": gdsload.Field("int64", (None,))}
    write(tmp_path / "in", [{"r": torch.arange(2 + n // 900)} for n in range(1000)], schema)
    dataset = converted(tmp_path / "in")
    assert dataset.schema == gdsload.Schema(schema)
    assert [len(dataset[index]["r"]) for index in (0, 899, 900)] == [2, 2, 3]
