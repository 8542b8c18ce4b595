"""Files that safetensors itself wrote, and gdsload shards in the hands of safetensors."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import gdsload
from gdsload.shards.format.header import PREFIX_BYTES, Header, header_bytes, parse_header
from gdsload.shards.format.layout import ShardLayout
from gdsload.shards.format.schema import Field, Schema
from gdsload.shards.format.shard import is_gdsload, read_shard


def read(path) -> tuple[bytes, Header]:
    raw = path.read_bytes()
    return raw, parse_header(raw[: header_bytes(raw[:PREFIX_BYTES], len(raw), path.name)], len(raw), path.name)


def test_numpy_file_has_the_offsets_that_safetensors_sees(tmp_path):
    path = tmp_path / "a.safetensors"
    arrays = {
        "images": np.arange(6 * 4 * 3, dtype=np.uint8).reshape(6, 4, 3),
        "label": np.arange(6, dtype=np.int64),
        "odd": np.ones((6, 1), np.float16),
        "empty": np.zeros((6, 0), np.float64),
    }
    safetensors.numpy.save_file(arrays, path, metadata={"made by": "a test"})
    raw, header = read(path)
    theirs = dict(safetensors.deserialize(raw))
    assert set(theirs) == set(header.tensors)
    for name, entry in header.tensors.items():
        assert (theirs[name]["dtype"], theirs[name]["shape"]) == (entry.dtype.code, list(entry.shape))
        assert bytes(theirs[name]["data"]) == raw[entry.begin : entry.end]
    assert header.metadata == {"made by": "a test"}
    assert sorted(header.tensors.values(), key=lambda entry: (entry.begin, entry.end)) == list(header.tensors.values())


@pytest.mark.parametrize("wide", "ab")
def test_plain_file_is_read_as_a_shard(tmp_path, wide):
    """Its fields are sorted by their names, whatever the order of the tensors, which are sorted by their width."""
    path = tmp_path / "a.safetensors"
    kinds = {name: np.float64 if name == wide else np.int8 for name in "ba"}
    safetensors.numpy.save_file({name: np.zeros((3, 2), kind) for name, kind in kinds.items()}, path)
    _, header = read(path)
    shard = read_shard(header, path.name)
    assert not is_gdsload(header)
    assert ["a", "b"] == list(shard.schema) == list(shard.columns)
    assert Schema({name: Field(kinds[name], (2,)) for name in "ab"}) == shard.schema
    assert {name: column.begin for name, column in shard.columns.items()} == {
        name: header.tensors[name].begin for name in "ab"
    }


def test_safetensors_opens_a_shard(tmp_path):
    schema = Schema({"x": Field("float32", (2, 2)), "nothing": Field("int64", (0,)), "text": Field("str")})
    layout = ShardLayout(schema, 3, {"text": 5}, {"text": "text"})
    x = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    offsets = np.array([0, 2, 2, 5])
    data = np.zeros(layout.data_bytes(), np.uint8)
    for name, values in {
        "x": x,
        "gdsload:offsets:text": offsets,
        "text": np.frombuffer(b"hallo", np.uint8),
    }.items():
        begin = layout.data_offsets()[name]
        data[begin : begin + values.nbytes] = values.reshape(-1).view(np.uint8)
    path = tmp_path / "a.safetensors"
    path.write_bytes(layout.header() + data.tobytes())

    loaded = safetensors.torch.load_file(path)
    assert torch.equal(torch.from_numpy(x), loaded["x"])
    assert loaded["nothing"].shape == (3, 0)
    with safetensors.safe_open(path, framework="np") as opened:
        assert opened.metadata()["gdsload.samples"] == "3"
        assert opened.get_tensor("gdsload:offsets:text").tolist() == [0, 2, 2, 5]
        assert bytes(opened.get_tensor("text")) == b"hallo"
        assert x[1:2].tolist() == opened.get_slice("x")[1:2].tolist()


def load(path, device):
    """All tensors of a file, by the call that docs/datasets.md shows where the installed safetensors has it."""
    if device == "cpu" or not hasattr(safetensors.safe_open, "prefetch"):
        return safetensors.torch.load_file(path, device=device)
    with safetensors.safe_open(path, framework="pt") as file, file.prefetch(device=device, threads=16) as loading:
        return dict(loading)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.cuda)])
def test_safetensors_loads_a_shard_onto_a_device(tmp_path, device):
    images = torch.arange(20 * 3000, dtype=torch.float32).reshape(20, 3, 1000)
    schema = {"image": Field("float32", (3, 1000)), "tokens": Field("int32", (None,))}
    with gdsload.ShardWriter(tmp_path / "d", schema) as writer:
        for number, image in enumerate(images):
            writer.write({"image": image, "tokens": torch.full((number,), number, dtype=torch.int32)})
    tensors = load(tmp_path / "d/shard-00000.safetensors", device)
    assert {tensor.device for tensor in tensors.values()} == {torch.device(device)}
    assert torch.equal(tensors["image"].cpu(), images)
    ends = tensors["gdsload:offsets:tokens"].tolist()
    found = [tensors["tokens"][begin:end].tolist() for begin, end in pairwise(ends)]
    assert found == [[number] * number for number in range(20)]


def test_float8_scales_are_known_to_safetensors():
    layout = ShardLayout(Schema({"scale": Field("float8_e8m0fnu", (4,))}), 2, {}, {})
    theirs = dict(safetensors.deserialize(layout.header() + bytes(layout.data_bytes())))
    assert (theirs["scale"]["dtype"], theirs["scale"]["shape"]) == ("F8_E8M0", [2, 4])
