"""Conversions pack fields as the writer does, and those that rearrange shards keep what is packed."""

import numpy as np
import pytest

from gdsload import Field, SchemaError, ShardDataset, ShardWriter, convert, merge, reshard, split
from gdsload.testing import fingerprint
from gdsload.tools.cli import main

FIELDS = {"x": Field("float32", (7,)), **{name: Field("int32") for name in "abcd"}, "text": "str"}
AUTO, NAMED = (("a", "b", "c", "d"),), (("a", "c"),)


def write(path, count=50, first=0, **options):
    numbers = np.arange(first, first + count)
    with ShardWriter(path, FIELDS, shard_bytes=400, **options) as writer:
        values = {name: (numbers + place).astype(np.int32) for place, name in enumerate("abcd")}
        wide = np.repeat(numbers[:, None], 7, axis=1).astype(np.float32)
        writer.write_batch({**values, "x": wide, "text": [f"t{number}" for number in numbers]})
    return ShardDataset(path)


def samples(*datasets):
    return [fingerprint(sample) for dataset in datasets for sample in dataset]


def test_scalars_of_a_source_are_packed(tmp_path, converted):
    source = tmp_path / "rows.csv"
    rows = [f"{number},{number + 1},{number % 2},0,{number / 2}\n" for number in range(100)]
    source.write_text("a,b,c,d,e\n" + "".join(rows))
    convert(source, tmp_path / "out", shard_bytes=2000, workers=1)
    dataset, plain = ShardDataset(tmp_path / "out"), converted(source, shard_bytes=2000, pack_fields=())
    assert len(dataset.shards) > 1
    assert sorted(name for names in dataset.stored.packed for name in names) == ["a", "b", "c", "d", "e"]
    assert not plain.stored.packed
    assert samples(dataset) == samples(plain)
    assert dataset.counts.tolist() == plain.counts.tolist()


@pytest.mark.parametrize("seed", [None, 3])
def test_result_is_what_one_writer_writes(tmp_path, seed):
    """From inputs that are packed in part, in another way, or not at all."""
    for number, rule in enumerate(((), "auto", ["a", "c"])):
        write(tmp_path / f"{number}", pack_fields=rule)
        options = {"shard_bytes": 400, "workers": 1, "pack_fields": "auto", "shuffle_seed": seed}
        reshard(tmp_path / f"{number}", tmp_path / f"out{number}", **options)
    found = [ShardDataset(tmp_path / f"out{number}") for number in range(3)]
    assert found[0].stored.packed == AUTO
    assert len({dataset.digest for dataset in found}) == 1
    if seed is None:
        assert found[0].digest == ShardDataset(tmp_path / "1").digest


@pytest.mark.parametrize(
    ("rules", "given", "packed"),
    [
        (["auto", "auto"], None, AUTO),
        ([["a", "c"]] * 2, None, NAMED),
        ([["a", "c"]] * 2, "auto", AUTO),
        ([["a", "c"]] * 2, (), ()),
        ([(), ()], None, AUTO),
        ([["a", "c"], "auto"], None, AUTO),
        (["auto", ()], ["c", "a"], NAMED),
    ],
)
def test_what_is_packed_stays_so_unless_the_datasets_differ(tmp_path, rules, given, packed):
    paths = [tmp_path / str(number) for number in range(len(rules))]
    datasets = [write(path, 20, 20 * number, pack_fields=rules[number]) for number, path in enumerate(paths)]
    merge(paths, tmp_path / "out", workers=1, shard_bytes=1000, pack_fields=given)
    dataset = ShardDataset(tmp_path / "out")
    assert dataset.stored.packed == packed
    assert samples(dataset) == samples(*datasets)
    assert dataset.verify(deep=True).shards == len(dataset.shards)


def test_parts_of_a_dataset_are_packed_as_it_is(tmp_path):
    dataset = write(tmp_path / "all", pack_fields=["a", "c"])
    split(tmp_path / "all", [tmp_path / "one", tmp_path / "two"], [20, 30], workers=1)
    parts = [ShardDataset(tmp_path / name) for name in ("one", "two")]
    assert [part.stored.packed for part in parts] == [NAMED] * 2
    assert samples(*parts) == samples(dataset)


def test_fields_that_are_chosen_are_packed_anew(tmp_path):
    write(tmp_path / "all", pack_fields=["a", "c"])
    reshard(tmp_path / "all", tmp_path / "out", fields=["a", "x"], workers=1)
    assert not ShardDataset(tmp_path / "out").stored.packed


def test_what_cannot_be_packed_is_refused_before_any_part_is_made(tmp_path):
    write(tmp_path / "all")
    with pytest.raises(SchemaError, match="field 'text': it cannot be packed"):
        reshard(tmp_path / "all", tmp_path / "out", pack_fields=["text"], workers=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all"]


@pytest.mark.parametrize("before", [(), ["d", "x"]])
@pytest.mark.parametrize(
    ("arguments", "packed"),
    [([], None), (["--pack-fields", "c,a"], NAMED), (["--no-pack-fields"], ()), (["--pack-fields", "auto"], AUTO)],
)
def test_command(tmp_path, before, arguments, packed):
    dataset = write(tmp_path / "all", pack_fields=before)
    assert main(["reshard", str(tmp_path / "all"), str(tmp_path / "out"), "--workers", "1", *arguments]) == 0
    wanted = (dataset.stored.packed or AUTO) if packed is None else packed
    assert ShardDataset(tmp_path / "out").stored.packed == wanted
