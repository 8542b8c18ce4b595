"""Shards that are written again: a bit that has flipped in one never gets a right checksum."""

from __future__ import annotations

import re
import shutil
from functools import cache
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import gdsload
from gdsload.errors import ChecksumError, FormatError
from gdsload.shards.format.checksum import BLOCK_BYTES
from gdsload.shards.opening import load_shard
from gdsload.shards.verify.row_checksums import RowCheck
from tests.conversion.reading import content
from tests.shards.bits import flip

SCHEMA = {
    "x": gdsload.Field("uint8", (20_001,)),
    "r": gdsload.Field("int32", (None, 7)),
    "q": gdsload.Field("int16", (None,)),
    "s": "str",
    "n": gdsload.Field("int64"),
}
TENSORS = ["x", "r", "q", "s", "n", "gdsload:offsets:r", "gdsload:offsets:s"]


def samples():
    rng = np.random.default_rng(3)
    for number in range(60):
        rows = int(rng.integers(0, 800))
        yield {
            "x": rng.integers(0, 256, 20_001, np.uint8), "r": rng.integers(0, 2**31, (rows, 7), np.int32),
            "q": rng.integers(0, 99, rows, np.int16), "s": "ß" * int(rng.integers(0, 9000)), "n": number,
        }  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A dataset of three shards; fields have several blocks of checksums, and two share their offsets."""
    path = tmp_path_factory.mktemp("sound") / "d"
    with gdsload.ShardWriter(path, SCHEMA, shard_bytes="1MiB") as writer:
        for sample in samples():
            writer.write(sample)
    assert len(gdsload.ShardDataset(path).shards) == 3
    return path


def entries(path):
    with open(path, "rb") as file:
        return load_shard(file.fileno(), str(path)).header.tensors


def merge(path, out, **options):
    gdsload.merge([path, path], out, **options)


def split(path, out, **options):
    gdsload.split(path, [out, f"{out}.b"], [0.5], seed=1, **options)


COMMANDS = {"reshard": gdsload.reshard, "merge": merge, "split": split, "convert": gdsload.convert}


@settings(derandomize=True, max_examples=20)
@given(
    st.sampled_from([*COMMANDS]), st.sampled_from(TENSORS), st.integers(0, 2), st.randoms(use_true_random=False),
    st.sampled_from(["stop", "skip"]),
)  # fmt: skip
def test_any_bit_that_has_flipped_stops_every_command(sound, tmp_path_factory, command, tensor, shard, rng, on_error):
    bit = rng.randrange(8)
    path = gdsload.ShardDataset(sound).shards[shard].file
    entry = entries(path)[tensor]
    offset = rng.randrange(entry.begin, entry.end)
    out = tmp_path_factory.mktemp("out") / "new"
    flip(path, offset, bit)
    try:
        with pytest.raises(FormatError, match=f"{re.escape(path)}, field '[rqsxn]'") as caught:
            COMMANDS[command](sound, out, shard_bytes="600KiB", workers=1, on_error=on_error)
    finally:
        flip(path, offset, bit)
    assert not out.exists()
    problem = caught.value.problems[0]
    assert isinstance(caught.value, ChecksumError)
    assert problem.field in {tensor.removeprefix("gdsload:offsets:"), "r", "q"}
    assert problem.offset <= offset < problem.offset + problem.nbytes
    assert problem.offset == entry.begin + (offset - entry.begin) // BLOCK_BYTES * BLOCK_BYTES
    assert problem.samples[0] < problem.samples[1] <= 60
    assert "Restore it from a copy; `gdsload verify` names everything" in str(caught.value)


def test_without_the_comparison_it_would_get_a_right_checksum(sound, tmp_path, monkeypatch):
    """The control."""
    monkeypatch.setattr(RowCheck, "__call__", lambda *_, **__: None)
    shutil.copytree(sound, tmp_path / "d")
    path = gdsload.ShardDataset(tmp_path / "d").shards[1].file
    flip(path, entries(path)["x"].begin + 5)
    gdsload.reshard(tmp_path / "d", tmp_path / "out")
    gdsload.ShardDataset(tmp_path / "out").verify()
    assert content(tmp_path / "out") != content(gdsload.reshard(sound, tmp_path / "good").path)


def test_the_part_of_a_split_that_is_whole_is_made(sound, tmp_path):
    """The damage is in a block of which only the second part has samples."""
    shutil.copytree(sound, tmp_path / "d")
    path = gdsload.ShardDataset(tmp_path / "d").shards[2].file
    flip(path, entries(path)["x"].begin)
    outs = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(ChecksumError, match="field 'x'"):
        gdsload.split(tmp_path / "d", outs, [20, 40], workers=1)
    assert len(gdsload.ShardDataset(outs[0])) == 20
    assert not outs[1].exists()


@settings(derandomize=True, max_examples=50)
@given(
    st.lists(st.integers(0, 59), min_size=1, max_size=12), st.sampled_from(TENSORS),
    st.integers(0, 2), st.randoms(use_true_random=False), st.integers(1, 3),
)  # fmt: skip
def test_exactly_the_blocks_that_samples_lie_in_are_compared(sound, ids, tensor, shard, rng, calls):
    dataset = gdsload.ShardDataset(sound)
    path, before = dataset.shards[shard].file, int(dataset.counts[:shard].sum())
    entry = entries(path)[tensor]
    offset = rng.randrange(entry.begin, entry.end)
    block = (offset - entry.begin) // BLOCK_BYTES
    touched, count = set(), int(dataset.counts[shard])
    for number in range(count):
        if tensor.startswith("gdsload:offsets:"):
            low, high = 8 * number, 8 * (number + 2)
        else:
            low, high = edges_of(sound, before, before + count, tensor)[number : number + 2]
        if low < high and before + number in ids:
            touched |= set(range(low // BLOCK_BYTES, (high - 1) // BLOCK_BYTES + 1))
    check = RowCheck(dataset.sources, dataset.stored)
    flip(path, offset)
    try:
        if block in touched:
            with pytest.raises(ChecksumError, match="samples are damaged"):
                check(np.array(ids))
        else:
            for some in np.array_split(np.array(ids), calls):
                check(some)
    finally:
        flip(path, offset)


@cache
def edges_of(path, low, high, tensor):
    """Where the parts of samples begin in a tensor of their shard, worked out from the samples themselves."""
    values = [gdsload.ShardDataset(path)[number][tensor] for number in range(low, high)]
    sizes = [len(one.encode()) if isinstance(one, str) else one.numel() * one.element_size() for one in values]
    return [0, *accumulate(sizes)]


def test_each_block_is_read_once(sound, monkeypatch):
    dataset, read = gdsload.ShardDataset(sound), []
    checked = dataset.verify().checked_bytes
    real = gdsload.shards.verify.opened.OpenShard.read
    monkeypatch.setattr(
        gdsload.shards.verify.opened.OpenShard, "read",
        lambda self, into, offset: (read.append(len(into)), real(self, into, offset))[1],
    )  # fmt: skip
    check = RowCheck(dataset.sources, dataset.stored)
    for number in range(60):
        check(np.array([number]))
    assert checked <= sum(read) <= checked + 60 * 3 * 16  # and two offsets of each sample and ragged field
    before = sum(read)
    check(np.arange(60))
    assert sum(read) - before <= 3 * 3 * 8 * 62


def test_files_without_checksums_go_on(tmp_path):
    save_file({"x": np.arange(1000, dtype=np.int32).reshape(100, 10)}, tmp_path / "a.safetensors")
    flip(tmp_path / "a.safetensors", 2000)
    for command, run in COMMANDS.items():
        run(tmp_path / "a.safetensors", tmp_path / command)
        gdsload.ShardDataset(tmp_path / command).verify()


def test_a_shard_with_another_header(sound, tmp_path):
    shutil.copytree(sound, tmp_path / "d")
    dataset = gdsload.ShardDataset(tmp_path / "d")
    flip(dataset.shards[1].file, 700)
    with pytest.raises(FormatError, match="00001"):
        RowCheck(dataset.sources, dataset.stored)(np.arange(60))


def test_a_shuffle_compares_what_it_has_converted(sound, tmp_path, monkeypatch):
    """It reads its own shards and writes them again, perhaps days later: an interrupted run goes on with what is there."""
    from gdsload.conversion import runner as run_module

    real = run_module.put_in_order

    def damaging(*args):
        ordered = real(*args)
        flip(ordered.shards[0].file, entries(ordered.shards[0].file)["x"].begin + 7)
        return ordered

    with monkeypatch.context() as patched:
        patched.setattr(run_module, "put_in_order", damaging)
        with pytest.raises(ChecksumError, match="the converted samples are damaged.*restart=True"):
            gdsload.convert(sound, tmp_path / "out", shuffle_seed=1, workers=1)
    with pytest.raises(ChecksumError, match="the converted samples are damaged"):
        gdsload.convert(sound, tmp_path / "out", shuffle_seed=1, workers=1)
    assert not (tmp_path / "out").exists()
    gdsload.convert(sound, tmp_path / "out", shuffle_seed=1, workers=1, restart=True)
    assert sorted(int(sample["n"]) for sample in gdsload.ShardDataset(tmp_path / "out")) == list(range(60))
