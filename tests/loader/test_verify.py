"""`verify=`: damaged bytes are found where they land, and named; all other batches stay as they are."""

import logging
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Subset

import gdsload
from gdsload import ChecksumError, Field, OptionError, ShardDataset, Verify
from gdsload.shards.format.checksum import BLOCK_BYTES
from gdsload.shards.local_files import open_regular
from gdsload.shards.opening import load_shard
from gdsload.shards.status import close
from tests.loader.conftest import write_rich
from tests.loader.taking import EXAMPLES, numbers, prints
from tests.shards.bits import flip

ROW = 48 * 1024
SAMPLES = 60
FIELDS = {"x": Field("uint8", (ROW,)), "points": Field("float32", (None, 2)), "text": "str", "label": Field("int64")}
WAYS = [{"shuffle": False}, {"shuffle": gdsload.BlockShuffle(block=16, window=32, lanes=2)}]


def write(path):
    random = np.random.default_rng(0)
    with gdsload.ShardWriter(path, FIELDS, shard_bytes="1MiB") as writer:
        for number in range(SAMPLES):
            writer.write({
                "x": random.integers(0, 256, ROW, dtype=np.uint8),
                "points": random.random((number % 5 + 1, 2)).astype(np.float32),
                "text": f"sample {number}",
                "label": number,
            })  # fmt: skip
    return path


def write_damaged(path):
    """A dataset with a bit turned over in each block of two fields."""
    for source in ShardDataset(write(path)).sources:
        for entry in (header(source.path).header.tensors[name] for name in ("x", "points")):
            for at in range(entry.begin, entry.end, BLOCK_BYTES):
                flip(source.path, at)
    return path


def header(path):
    fd = open_regular(path, follow_links=False)
    try:
        return load_shard(fd, path)
    finally:
        close(fd)


def load(path, batch_size=7, **options):
    given = {"device": "cpu", "verify": "all", "with_index": True, "fields": ["x", "points"]} | options
    return gdsload.DataLoader(path, batch_size, **given)


def taken(loader):
    """All batches of an epoch, and the errors between them."""
    batches, errors, iterator = [], [], iter(loader)
    while True:
        try:
            batches.append(next(iterator))
        except StopIteration:
            return batches, errors
        except ChecksumError as error:
            errors.append(error)


def check_bit(written, path, name, at, way, **options):
    """Turn a bit of a field over, and check that a loader names it, and gives all batches but those that it spoils.

    The shard is at `path`, the bit in its byte `at`; `way` has options of that loader alone.
    """
    right = list(load(written, verify="off", **options))
    flip(path, at)
    try:
        with load(written, **options, **way) as loader:
            batches, errors = taken(loader)
    finally:
        flip(path, at)
    [problem] = {problem for error in errors for problem in error.problems}
    assert (problem.file, problem.field) == (path, name)
    assert problem.offset <= at < problem.offset + problem.nbytes <= problem.offset + BLOCK_BYTES
    spoiled = set(range(*problem.samples))
    assert prints(batches) == prints([batch for batch in right if not set(batch["index"].tolist()) & spoiled])
    assert len(errors) + len(batches) == len(right)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write(tmp_path_factory.mktemp("written") / "shards")


@EXAMPLES
@given(seed=st.integers(0, 2**64 - 1), mmap=st.booleans(), verify=st.sampled_from(["all", "sample"]), data=st.data())
def test_batches_are_the_same(written, seed, mmap, verify, data):
    ways = WAYS if verify == "all" else [*WAYS, {"shuffle": "full"}]
    options = {"mmap": mmap, "seed": seed, **data.draw(st.sampled_from(ways))}
    assert prints(load(written, verify=verify, **options)) == prints(load(written, verify="off", **options))


@EXAMPLES
@given(data=st.data(), mmap=st.booleans(), way=st.sampled_from(WAYS))
def test_a_bit_that_turns_over_is_named_and_spoils_its_batches_alone(written, data, mmap, way):
    dataset = ShardDataset(written)
    shard = data.draw(st.integers(0, len(dataset.sources) - 1))
    path = dataset.sources[shard].path
    name = data.draw(st.sampled_from(["x", "points"]))
    entry = header(path).header.tensors[name]
    at = data.draw(st.integers(entry.begin, entry.end - 1))
    check_bit(written, path, name, at, {}, mmap=mmap, **way)


def test_skipping_leaves_out_those_batches_and_resumes_among_the_others(tmp_path, caplog):
    path = write(tmp_path / "shards")
    right = numbers(load(path, verify="off"))
    source = ShardDataset(path).sources[1]
    flip(source.path, header(source.path).header.tensors["x"].begin)
    loader = load(path, verify=Verify("all", on_corrupt="skip"))
    with caplog.at_level(logging.WARNING, "gdsload"):
        found = numbers(loader)
    assert found == [batch for batch in right if batch in found]
    assert 0 < len(right) - len(found) < 5
    assert len([one for one in caplog.records if "is left out" in one.message]) == len(right) - len(found)
    iterator = iter(other := load(path, verify=Verify("all", on_corrupt="skip")))
    before = [next(iterator)["index"].tolist() for _ in range(3)]
    resumed = load(path, verify=Verify("all", on_corrupt="skip"))
    resumed.load_state_dict(other.state_dict())
    assert before + numbers(resumed) == found


def test_a_sample_of_the_blocks_is_compared_the_same_ones_in_every_epoch(tmp_path):
    """All blocks are damaged. Batches of those alone that are not compared come as they are."""
    path = write_damaged(tmp_path / "shards")
    right, found = list(load(path, verify="off")), set()
    for seed in range(20):
        batches, errors = taken(load(path, verify="sample", seed=seed))
        problems = {problem for error in errors for problem in error.problems}
        spoiled = {sample for problem in problems for sample in range(*problem.samples)}
        assert prints(batches) == prints([one for one in right if not spoiled & set(one["index"].tolist())])
        loader = load(path, verify=Verify("sample", on_corrupt="skip"), seed=seed)
        assert prints(loader) == prints(loader) == prints(batches)
        _, errors = taken(load(path, verify="sample", seed=seed, fields=["points"]))
        of_points = {problem for error in errors for problem in error.problems}
        assert of_points == {problem for problem in problems if problem.field == "points"}
        found.add(frozenset(problems))
    assert len(found) > 4


def test_samples_are_named_as_in_the_dataset_where_shards_are_left_out(tmp_path):
    path = write(tmp_path / "shards")
    source, samples = ShardDataset(path).sources[-1].path, range(30, SAMPLES)
    flip(source, header(source).header.tensors["x"].end - 1)
    batches, errors = taken(load(Subset(ShardDataset(path), samples), 5, fields=["x"]))
    [low, high] = errors[-1].samples[0]
    assert high == SAMPLES
    spoiled = {number - samples.start for number in range(low, high)}
    assert numbers(batches) == [
        one.tolist() for one in np.split(np.arange(len(samples)), len(samples) // 5) if not set(one.tolist()) & spoiled
    ]


def test_offsets_are_compared(tmp_path):
    path = write(tmp_path / "shards")
    source = ShardDataset(path).sources[0]
    flip(source.path, header(source.path).header.tensors["gdsload:offsets:points"].begin + 8, 1)
    with pytest.raises(ChecksumError, match="offsets of ragged fields are damaged"):
        list(load(path))
    assert len(list(load(path, fields=["x"]))) == len(load(path))


def test_every_kind_of_field(tmp_path):
    path = write_rich(tmp_path / "rich", 200, pack_fields=["image", "label"])
    every = {"fields": None, "batch_size": 16}
    plain = prints(load(path, verify="off", **every))
    assert prints(load(path, **every)) == plain
    for seed in range(8):
        assert prints(load(path, verify="sample", seed=seed, **every)) == plain


def test_windows_are_compared_by_all_of_their_samples(tmp_path):
    path = write(tmp_path / "shards")
    source = ShardDataset(path).sources[0]
    flip(source.path, header(source.path).header.tensors["x"].begin)
    windows = gdsload.Windows(path, offsets={"x": range(-1, 3), "label": range(1)})
    with pytest.raises(ChecksumError):
        next(iter(gdsload.DataLoader(windows, 2, device="cpu", verify="all")))


def test_what_cannot_be_compared_is_refused(tmp_path):
    path = write(tmp_path / "shards")
    for shuffle in ("full", gdsload.BlockShuffle(block=2)):
        with pytest.raises(OptionError, match=r"verify is on, but checksums are of 256 KiB") as caught:
            load(path, shuffle=shuffle)
        block = int(re.search(r"Pass `shuffle=gdsload.BlockShuffle\(block=(\d+)\)`", caught.value.remedy)[1])
        load(path, shuffle=gdsload.BlockShuffle(block=block)).close()
        with pytest.raises(OptionError, match="verify is on"):
            load(path, shuffle=gdsload.BlockShuffle(block=block - 1))
    with pytest.raises(OptionError, match="far more would have to be read"):
        load(path, shuffle="full", fields=["label"], verify="sample")
    with pytest.raises(OptionError, match="verify.on_corrupt is 'skip', but all ranks"):
        load(path, verify=Verify("all", on_corrupt="skip"), ranks=(0, 2))
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file({"x": torch.zeros(100, 8)}, tmp_path / "plain.safetensors")
    with pytest.raises(OptionError, match=r"did not write .*plain.safetensors.*gdsload.convert"):
        list(gdsload.DataLoader(tmp_path / "plain.safetensors", 4, device="cpu", verify="all"))
