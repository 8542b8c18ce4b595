"""Merging, splitting, resharding: what comes out is what one writer would have written of the same samples."""

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import gdsload
from gdsload.errors import DatasetExistsError, FormatError, OptionError, WriteError
from tests.conversion.reading import content, hidden

SCHEMA = {
    "x": gdsload.Field("bfloat16", (3, 2)),
    "flag": gdsload.Field("bool"),
    "r": gdsload.Field("int16", (None, 5)),
    "q": gdsload.Field("float32", (None,)),
    "text": "str",
    "raw": "bytes",
}


def samples(count, seed):
    random = np.random.default_rng(seed)
    return [
        {
            "x": torch.from_numpy(random.normal(size=(3, 2))).to(torch.bfloat16),
            "flag": bool(number % 3),
            "r": random.integers(-99, 99, (int(random.integers(0, 6)), 5), np.int16),
            "q": random.random(int(random.integers(0, 9)), np.float32),
            "text": "é" * int(random.integers(0, 5)),
            "raw": random.bytes(int(random.integers(0, 30))),
        }
        for number in range(count)
    ]


def write(path, given_samples, shard_bytes="1MiB", schema=SCHEMA):
    with gdsload.ShardWriter(path, schema, shard_bytes=shard_bytes) as writer:
        for sample in given_samples:
            writer.write(sample)
    return path


@settings(derandomize=True, max_examples=15)
@given(st.integers(1, 60), st.integers(1, 1500), st.integers(1, 1500), st.integers(1, 3))
def test_a_resharded_dataset_is_what_one_writer_would_have_written(tmp_path_factory, count, before, after, workers):
    folder = tmp_path_factory.mktemp("reshard")
    made = samples(count, before)
    write(folder / "source", made, before)
    report = gdsload.reshard(folder / "source", folder / "out", shard_bytes=after, workers=workers)
    assert content(folder / "out") == content(write(folder / "wanted", made, after))
    assert report.samples == count
    assert hidden(folder) == []


def test_merged_datasets_come_one_behind_the_other(tmp_path):
    made = [samples(count, count) for count in (40, 1, 25)]
    paths = [write(tmp_path / str(number), part, 800) for number, part in enumerate(made)]
    gdsload.merge([*paths, paths[0]], tmp_path / "out", shard_bytes=1500, workers=2)
    wanted = write(tmp_path / "wanted", [*made[0], *made[1], *made[2], *made[0]], 1500)
    assert content(tmp_path / "out") == content(wanted)


def test_files_of_other_programs_can_be_merged(tmp_path):
    for number in range(3):
        save_file({"x": torch.arange(12).reshape(4, 3) + 100 * number}, tmp_path / f"{number}.safetensors")
    gdsload.merge([tmp_path, tmp_path / "1.safetensors"], tmp_path / "out")
    found = gdsload.ShardDataset(tmp_path / "out").read_batch(range(16))["x"]
    assert torch.equal(found[12:], found[4:8])
    assert found[:, 0].tolist() == [*range(0, 12, 3), *range(100, 112, 3), *range(200, 212, 3), *range(100, 112, 3)]


def test_a_merged_dataset_may_be_shuffled_and_have_fewer_fields(tmp_path):
    made = samples(50, 1)
    paths = [write(tmp_path / "a", made[:20]), write(tmp_path / "b", made[20:])]
    gdsload.merge(paths, tmp_path / "out", shuffle_seed=3, fields=["raw"], shard_bytes=200)
    dataset = gdsload.ShardDataset(tmp_path / "out")
    found = [sample["raw"] for sample in dataset]
    assert list(dataset.schema) == ["raw"]
    assert sorted(found) == sorted(sample["raw"] for sample in made)
    assert found != [sample["raw"] for sample in made]


def test_other_fields_cannot_be_merged(tmp_path):
    paths = [write(tmp_path / "a", samples(3, 0)), write(tmp_path / "b", [{"z": 1}], schema=None)]
    with pytest.raises(OptionError, match="have different fields"):
        gdsload.merge(paths, tmp_path / "out")
    for none in ([], "shards/"):
        with pytest.raises(OptionError, match="no list of datasets"):
            gdsload.merge(none, tmp_path / "out")
    with pytest.raises(FormatError, match="not one sample"):
        gdsload.merge([write(tmp_path / "empty", [])], tmp_path / "out")


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ([30, 50, 20], [30, 50, 20]),
        ([30, 50], [30, 50, 20]),
        ([0.3, 0.5, 0.2], [30, 50, 20]),
        ([1 / 3, 1 / 3], [33, 34, 33]),
    ],
)
@pytest.mark.parametrize("seed", [None, 5])
def test_every_sample_is_in_one_part(tmp_path, sizes, counts, seed):
    made = samples(100, 2)
    for number, sample in enumerate(made):
        sample["text"] = str(number)
    write(tmp_path / "d", made, 2000)
    outs = [tmp_path / name for name in "abc"]
    reports = gdsload.split(tmp_path / "d", outs, sizes, seed=seed, shard_bytes=900, workers=1)
    assert [report.samples for report in reports] == counts
    numbers = [[int(sample["text"]) for sample in gdsload.ShardDataset(out)] for out in outs]
    assert sorted(chain(*numbers)) == list(range(100))
    assert all(part == sorted(part) for part in numbers)
    assert (numbers == [list(part) for part in np.split(np.arange(100), np.cumsum(counts)[:-1])]) == (seed is None)
    for out, part in zip(outs, numbers, strict=True):
        wanted = write(tmp_path / f"wanted {out.name}", [made[number] for number in part], 900)
        assert content(out) == content(wanted)
    assert hidden(tmp_path) == []


def test_a_seed_decides_who_gets_what(tmp_path):
    write(tmp_path / "d", samples(60, 3))
    found = []
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        gdsload.split(tmp_path / "d", [tmp_path / f"{name}{n}" for n in (0, 1)], [0.5], seed=seed)
        found.append(content(tmp_path / f"{name}0"))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("outs", "sizes", "what"),
    [
        ("a", [0.5], "outs is 'a', no list"),
        (["a", "b"], 0.5, "sizes is 0.5, no list"),
        (["a", "a"], [0.5], "the same"),
        *((["a", "b"], sizes, "sizes are") for sizes in ([50, 60], [0.5, 0.6], [-1, 101])),
        *((["a", "b", "c"], sizes, "sizes are") for sizes in ([0.5], [1, 2, 3, 4])),
        *((["a", "b", "c"], sizes, "no samples") for sizes in ([0, 0, 100], [0.0, 1.0, 0.0])),
    ],
)
def test_parts_that_cannot_be(tmp_path, monkeypatch, outs, sizes, what):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "d", samples(100, 2))
    with pytest.raises(OptionError, match=what):
        gdsload.split(tmp_path / "d", outs, sizes)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("overwrite", [True, False])
def test_no_part_takes_the_place_of_the_whole(tmp_path, overwrite, first):
    """The others are made of what would be gone then."""
    made = samples(60, 4)
    before = content(write(tmp_path / "d", made))
    (tmp_path / "link").symlink_to(tmp_path / "d")
    outs = [tmp_path / "link" / ".." / "d", tmp_path / "e"]
    with pytest.raises(OptionError, match="d: the samples that are to be shared out are in this folder themselves"):
        gdsload.split(tmp_path / "link", outs if first else outs[::-1], [0.5], overwrite=overwrite, workers=1)
    assert content(tmp_path / "d") == before
    assert not (tmp_path / "e").exists()
    assert hidden(tmp_path) == []


def test_what_must_not_be_replaced_is_said_before_anything_is_written(tmp_path):
    write(tmp_path / "d", samples(60, 4))
    write(tmp_path / "b", samples(3, 5))
    with pytest.raises(DatasetExistsError, match="b: there is something already"):
        gdsload.split(tmp_path / "d", [tmp_path / "a", tmp_path / "b"], [0.5], workers=1)
    assert not (tmp_path / "a").exists()
    assert hidden(tmp_path) == []


def test_an_interrupted_split_is_run_again_with_overwrite(tmp_path):
    made = samples(100, 4)
    write(tmp_path / "d", made)
    outs = [tmp_path / "a", tmp_path / "b"]

    def stop(samples, nbytes, parts, of):
        if outs[0].exists() and parts == 3:
            raise WriteError("the file cannot be written")

    with pytest.raises(WriteError, match="cannot be written"):
        gdsload.split(tmp_path / "d", outs, [30, 70], shard_bytes=700, workers=1, progress=stop)
    assert outs[0].exists()
    assert not outs[1].exists()
    with pytest.raises(DatasetExistsError, match="something already"):
        gdsload.split(tmp_path / "d", outs, [30, 70], shard_bytes=700, workers=1)
    first, second = gdsload.split(tmp_path / "d", outs, [30, 70], shard_bytes=700, workers=1, overwrite=True)
    assert (first.samples, second.samples) == (30, 70)
    assert second.resumed == 3
    assert content(outs[1]) == content(write(tmp_path / "wanted", made[30:], 700))
    assert hidden(tmp_path) == []
