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
from gdsload.shards.format.layout import ShardLayout
from gdsload.shards.format.schema import Field, Schema
from gdsload.shards.format.shard import is_gdsload
from gdsload.shards.format.stored import StoredSchema
from tests.shards.format.shard_files import file_of, shard_of


@pytest.mark.parametrize("wide", "ab")
def test_plain_file_is_read_as_a_shard(tmp_path, wide):
    """Its fields are sorted by their names, whatever the order of the tensors, which are sorted by their width."""
    path = tmp_path / "a.safetensors"
    kinds = {name: np.float64 if name == wide else np.int8 for name in "ba"}
    safetensors.numpy.save_file({name: np.zeros((3, 2), kind) for name, kind in kinds.items()}, path)
    shard = shard_of(path.read_bytes())
    assert not is_gdsload(shard.header)
    assert ["a", "b"] == list(shard.stored.schema) == list(shard.columns)
    assert Schema({name: Field(kinds[name], (2,)) for name in "ab"}) == shard.stored.schema
    assert {name: column.begin for name, column in shard.columns.items()} == {
        name: shard.header.tensors[name].begin for name in "ab"
    }


def test_safetensors_opens_a_shard(tmp_path):
    schema = Schema({"x": Field("float32", (2, 2)), "nothing": Field("int64", (0,)), "text": Field("str")})
    layout = ShardLayout(StoredSchema(schema), 3, {"text": 5}, {"text": "text"})
    x = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    offsets = np.array([0, 2, 2, 5])
    payloads = {"x": x.tobytes(), "nothing": b"", "gdsload:offsets:text": offsets.tobytes(), "text": b"hallo"}
    path = tmp_path / "a.safetensors"
    path.write_bytes(file_of(layout, payloads))

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
