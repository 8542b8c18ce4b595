"""Shards and safetensors files as a source."""

import pytest
import torch
from safetensors.torch import save_file

import gdsload
from gdsload.conversion.sources.safetensors_files import SafetensorsSource
from gdsload.errors import DatasetNotFoundError, FormatError
from tests.conversion.reading import items_of


def write(path, samples, schema=None):
    with gdsload.ShardWriter(path, schema, shard_bytes=400) as writer:
        for sample in samples:
            writer.write(sample)
    return str(path)


def test_files_of_others(tmp_path):
    save_file({"a": torch.arange(6.0).reshape(3, 2), "b": torch.arange(3)}, tmp_path / "x.safetensors")
    for path in (tmp_path, tmp_path / "x.safetensors"):
        (item,) = items_of(SafetensorsSource(str(path)))
        found = item.make()
        assert item.count == 3
        assert torch.equal(found["a"], torch.arange(6.0).reshape(3, 2))
        assert torch.equal(found["b"], torch.arange(3))


@pytest.mark.parametrize("other", [torch.zeros(4, 5), torch.zeros(3, 2, dtype=torch.int8)])
def test_splits_of_other_shapes_are_not_put_together(tmp_path, converted, other):
    for name, values in (("train", torch.zeros(3, 2)), ("test", other)):
        save_file({"x": values}, tmp_path / f"{name}.safetensors")
    with pytest.raises(FormatError, match=r"train.safetensors: its fields are .*Pass one split, `split='train'`"):
        converted(tmp_path, split="all")
    assert len(converted(tmp_path, split="train")) == 3


def test_what_it_says_of_itself_and_what_it_refuses(tmp_path):
    one = SafetensorsSource(write(tmp_path / "one", [{"n": 5}])).describe()
    assert one != SafetensorsSource(write(tmp_path / "two", [{"n": 6}])).describe()
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
    write(tmp_path / "in", [{"r": torch.arange(2 + n // 90)} for n in range(100)], schema)
    dataset = converted(tmp_path / "in")
    assert dataset.schema == gdsload.Schema(schema)
    assert [len(dataset[index]["r"]) for index in (0, 89, 90)] == [2, 2, 3]
