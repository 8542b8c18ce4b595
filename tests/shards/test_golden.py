"""The golden datasets: what versions 1 to 3 of the format mean, for ever."""

import pytest
import torch
from safetensors import safe_open

from gdsload import ShardDataset
from gdsload.shards.format.dtypes import DTYPES
from tools import make_golden

GOLDEN = make_golden.FOLDER
NAMES = sorted(make_golden.SCHEMAS)


def bits(value):
    if not isinstance(value, torch.Tensor):
        return value
    return value.dtype, value.shape, value.contiguous().reshape(-1).view(torch.uint8).tolist()


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_samples_are_those_that_were_written(name, mmap):
    dataset = ShardDataset(make_golden.place(GOLDEN, name), mmap=mmap)
    wanted = list(make_golden.samples(name))
    assert (make_golden.SCHEMAS[name], len(wanted)) == (dataset.schema, len(dataset))
    assert dataset.metadata == make_golden.METADATA.get(name, {})
    assert dataset.verify(deep=True).unchecked_bytes == 0
    for sample, found in zip(wanted, dataset, strict=True):
        assert {key: bits(value) for key, value in sample.items()} == {key: bits(value) for key, value in found.items()}


def test_writer_writes_the_same_bytes(tmp_path):
    make_golden.write(tmp_path)
    wanted = {path.relative_to(GOLDEN): path.read_bytes() for path in GOLDEN.rglob("*") if path.is_file()}
    found = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert sorted(wanted) == sorted(found)
    assert [path for path in wanted if wanted[path] != found[path]] == []


def test_digests_never_change():
    """The name of each dataset's content, which users may have written down."""
    assert {name: ShardDataset(make_golden.place(GOLDEN, name)).digest for name in NAMES} == {
        "dtypes": "9a5a4a42d53ca974ef1967f86aaa269848986fb726737831ee6b38464b72b985",
        "packed": "3f5bc5297f38b414a471a3632eccdaea4f15203e92ed405ce037b21377932eaa",
        "empty": "0716db0c2504b610532f744b586e1eeba96136fb2d72fe55ca2f9a0935ddc2bb",
        "images": "95e17c2ca1c4c6e85f45b567aa9639053ec4e8f373d88460720be0a4ad9e9daa",
        "images-apart": "8aa280a63bad308829d85c16d75c3959473fe09450095e13dc80d2fe02aad8e5",
        "ragged": "325f799da42162daebf670d9b2c9cbdb5e735ec0ca4780a97246a21f45e7e60b",
    }


def test_they_cover_the_format():
    fields = [field for schema in make_golden.SCHEMAS.values() for field in schema.values()]
    assert {dtype.name for dtype in DTYPES.values()} == {field.dtype.name for field in fields}
    packed = ShardDataset(make_golden.place(GOLDEN, "packed"))
    assert len(packed.shards) > 1
    inside = [packed.schema[name].dtype.name for names in packed.stored.packed for name in names]
    assert {1, 2, 4, 8} == {dtype.itemsize for dtype in DTYPES.values() if dtype.name in inside}
    assert {"fixed", "ragged", "str", "bytes", "image"} == {field.kind for field in fields}
    ragged = ShardDataset(make_golden.place(GOLDEN, "ragged"))
    assert len(ragged.shards) > 1
    with safe_open(ragged.shards[0].file, "pt") as file:
        owners = {name.removeprefix("gdsload:offsets:") for name in file.keys() if ":offsets:" in name}  # noqa: SIM118
    assert {"points", "naïve", "raw"} == owners  # the colours share the offsets of the points


def test_they_are_small():
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()) < 400 * 1024
