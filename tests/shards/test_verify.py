"""verify(): no byte may differ unnoticed, and what differs is named."""

import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload import ChecksumError, Field, FileChangedError, FormatError, ShardDataset, ShardWriter
from gdsload.shards.format.checksum import BLOCK_BYTES, block_digest
from gdsload.shards.format.dtypes import DTYPES
from gdsload.shards.format.shard import OFFSETS_PREFIX, PADDING_PREFIX
from gdsload.shards.opening import load_shard
from gdsload.shards.values import torch_dtype
from gdsload.shards.verify.contents import not_finite, runs_of, text_faults
from gdsload.shards.verify.opened import PIECE_BYTES
from tests.shards.bits import flip
from tests.shards.format.shard_files import SIGNATURES

PLACES = ["header", "x", "r", "s", "n", "offsets", "pad"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A dataset of two shards, with fields of several blocks each."""
    path = tmp_path_factory.mktemp("verify") / "d"
    rng = np.random.default_rng(3)
    fields = {"x": Field("uint8", (50_001,)), "r": Field("int32", (None, 7)), "s": "str", "n": Field("int64")}
    with ShardWriter(path, fields, shard_bytes="1MiB") as writer:
        for number in range(30):
            rows = rng.integers(0, 2**31, (int(rng.integers(0, 800)), 7), np.int32)
            writer.write({"x": rng.integers(0, 256, 50_001, np.uint8), "r": rows, "s": "ß" * number, "n": number})
    assert len(ShardDataset(path).shards) == 2
    return path


def entry_at(path, offset):
    with open(path, "rb") as file:
        shard = load_shard(file.fileno(), str(path))
    entries = shard.header.tensors.values()
    return shard, next((entry for entry in entries if entry.begin <= offset < entry.end), None)


def samples_at(dataset, shard_number, shard, entry, offset):
    """Samples to which the bytes of the block around `offset` belong, worked out one by one; the dataset's numbers."""
    low = (offset - entry.begin) // BLOCK_BYTES * BLOCK_BYTES
    high = min(low + BLOCK_BYTES, entry.end - entry.begin)
    dataset = ShardDataset(dataset.path)  # the files have new times
    first = int(dataset.counts[:shard_number].sum())
    position, found = 0, []
    for index, sample in enumerate(dataset.__getitems__(range(first, first + shard.samples))):
        value = sample[entry.name]
        nbytes = len(value.encode()) if isinstance(value, str) else value.numel() * value.element_size()
        if max(low, position) < min(high, position + nbytes):
            found.append(first + index)
        position += nbytes
    return found


@settings(derandomize=True, max_examples=60)
@given(st.integers(0, 1), st.sampled_from(PLACES), st.randoms(), st.integers(0, 7))
def test_any_bit_that_flips_is_found_and_named(sound, shard_number, where, rng, bit):
    dataset = ShardDataset(sound)
    path = dataset.shards[shard_number].file
    shard, _ = entry_at(path, 0)
    prefix = {"offsets": OFFSETS_PREFIX, "pad": PADDING_PREFIX}.get(where, where)
    entries = [
        entry for entry in shard.header.tensors.values() if entry.name.startswith(prefix) and entry.end > entry.begin
    ]
    begin, end = (0, shard.header.data_start) if where == "header" else rng.choice([(e.begin, e.end) for e in entries])
    offset = rng.randrange(begin, end)
    _, entry = entry_at(path, offset)
    flip(path, offset, bit)
    try:
        with pytest.raises((ChecksumError, FormatError), match="problem") as caught:
            ShardDataset(sound).verify()
    finally:
        flip(path, offset, bit)
    problems = caught.value.problems
    assert {path} == {problem.file for problem in problems}
    if where not in ("header", "pad"):
        block = entry.begin + (offset - entry.begin) // BLOCK_BYTES * BLOCK_BYTES
        assert (block, entry.name.removeprefix(OFFSETS_PREFIX)) == (problems[0].offset, problems[0].field)
        if where == "offsets":
            number = (offset - entry.begin) // 8
            low, high = problems[0].samples
            first = int(dataset.counts[:shard_number].sum())
            spoiled = {first + max(number - 1, 0), first + min(number, shard.samples - 1)}
            assert spoiled <= set(range(low, high))
        else:
            found = samples_at(dataset, shard_number, shard, entry, offset)
            assert (found[0], found[-1] + 1) == problems[0].samples
            assert f"(samples {found[0]} to {found[-1]})" in str(problems[0])


def test_report_and_progress(sound):
    dataset = ShardDataset(sound)
    calls = []
    report = dataset.verify(progress=lambda done, total: calls.append((done, total)))
    assert {dataset.num_bytes} == {total for _, total in calls}
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert dataset.num_bytes == calls[-1][0]
    rows = sum(sample["r"].numel() * 4 for sample in dataset)
    text = sum(len(sample["s"].encode()) for sample in dataset)
    offsets = sum(2 * 8 * (count + 1) for count in dataset.counts.tolist())
    assert 30 * (50_001 + 8) + rows + text + offsets == report.checked_bytes
    assert (report.shards, report.unchecked_bytes) == (2, 0)


def test_a_dataset_that_was_replaced_is_not_called_damaged(sound, tmp_path):
    dataset = ShardDataset(shutil.copytree(sound, tmp_path / "d"))
    with ShardWriter(tmp_path / "d", {"x": "int64"}, overwrite=True) as writer:
        writer.write({"x": 1})
    with pytest.raises(FileChangedError, match="was replaced by another file .*Open the dataset again"):
        dataset.verify()


def test_error_in_the_progress_report_comes_out(sound):
    def stop(done, total):
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        ShardDataset(sound).verify(progress=stop)


def test_a_shard_that_cannot_be_read_does_not_hide_the_others(sound, tmp_path, monkeypatch):
    shutil.copytree(sound, tmp_path / "d")
    dataset = ShardDataset(tmp_path / "d")
    first, second = (shard.file for shard in dataset.shards)
    count = dataset.shards[0].samples
    flip(second, dataset.shards[1].bytes - 1)
    with open(first, "r+b") as file:
        file.truncate(dataset.shards[0].bytes - 4096)
    with pytest.raises(ChecksumError, match="2 problems in 2 of 2 shards") as caught:
        dataset.verify()
    assert [first, second] == [problem.file for problem in caught.value.problems]
    assert "Restore those shards from a copy, or write the dataset again" in str(caught.value)
    assert caught.value.problems[0].samples == (0, count)
    assert caught.value.problems[-1].message == "padding is not zero"
    assert caught.value.samples == ((0, count),)


# --- deep ---


def rewritten(path, tensor, at, data):
    """Other bytes in a shard, with the checksum that they should have: what a faulty writer leaves."""
    with open(path, "r+b") as file:
        shard = load_shard(file.fileno(), str(path))
        entry = shard.header.tensors[tensor]
        file.seek(entry.begin)
        content = bytearray(file.read(entry.end - entry.begin))
        assert len(content) <= BLOCK_BYTES
        before, content[at : at + len(data)] = block_digest(bytes(content)), data
        file.seek(entry.begin)
        file.write(content)
        file.seek(0)
        header = file.read(shard.header.data_start)
        assert header.count(before.encode()) == 1
        file.seek(0)
        file.write(header.replace(before.encode(), block_digest(bytes(content)).encode()))
    return entry.begin


@pytest.mark.parametrize(("field", "values", "written", "samples", "begins", "says"), [
    (Field("str"), ["abc"] * 9, (7, b"\xff\xff\xff"), (2, 4), 6,
     "2 texts are no valid UTF-8: invalid start byte at byte 1 of the text"),
    (Field("image", codecs=["jpeg", "png"]), [SIGNATURES["png"]] + [SIGNATURES["jpeg"]] * 8, (18, b"????"), (4, 6), 17, "2 images are none of jpeg, png"),
], ids=["texts", "images"])  # fmt: skip
def test_texts_and_images_that_are_none_are_found_though_their_checksums_are_right(
    tmp_path, field, values, written, samples, begins, says
):
    with ShardWriter(tmp_path / "d", {"x": field, "n": Field("int64")}) as writer:
        writer.write_batch({"x": values, "n": list(range(9))})
    assert ShardDataset(tmp_path / "d").verify(deep=True).shards == 1
    (path,) = (shard.file for shard in ShardDataset(tmp_path / "d").shards)
    begin = rewritten(path, "x", *written)
    shard = ShardDataset(path)  # by its own path: the index knows another header
    assert shard.verify().checked_bytes == sum(map(len, values)) + 72 + 80
    with pytest.raises(FormatError, match="1 problem in 1 of 1 shards. The bytes are those that were") as caught:
        shard.verify(deep=True)
    assert not isinstance(caught.value, ChecksumError)
    (problem,) = caught.value.problems
    assert (problem.field, problem.samples, problem.message) == ("x", samples, says)
    assert (problem.offset, problem.nbytes) == (begin + begins, 6)
    for number in range(9) if field.kind == "str" else ():
        if number in range(*samples):
            with pytest.raises(FormatError, match="no valid UTF-8"):
                shard[number]
        else:
            assert shard[number]["x"] == "abc"


pieces = st.sampled_from([b"", b"a", "é".encode(), "é".encode()[:1], "é".encode()[1:], "𝄞".encode(), b"\xff"])


@settings(derandomize=True)
@given(st.lists(pieces, max_size=12))
def test_exactly_the_texts_that_do_not_decode_are_found(texts):
    def decodes(text):
        try:
            return text.decode() is not None
        except UnicodeDecodeError:
            return False

    edges = np.cumsum([0, *map(len, texts)])
    found = [number for low, high, _ in runs_of(text_faults(b"".join(texts), edges)) for number in range(low, high)]
    assert found == [number for number, text in enumerate(texts) if not decodes(text)]


@pytest.mark.parametrize("dtype", [one for one in DTYPES.values() if one.itemsize <= 2], ids=lambda one: one.name)
def test_nan_and_infinity_are_counted_without_torch_as_torch_counts_them(dtype):
    """Of every number that one or two bytes can hold."""
    every = np.arange(256**dtype.itemsize, dtype=f"u{dtype.itemsize}").tobytes()
    numbers = torch.frombuffer(bytearray(every), dtype=torch_dtype(dtype)).float()
    assert not_finite(memoryview(every), dtype) == (int(numbers.isnan().sum()), int(numbers.isinf().sum()))


@pytest.mark.parametrize("packed", [[], ["x", "y"]], ids=["apart", "packed"])
@pytest.mark.parametrize("name", [dtype.name for dtype in DTYPES.values() if hasattr(torch, dtype.name)])
def test_nan_and_infinity_are_counted_in_every_element_type(tmp_path, name, packed):
    dtype = getattr(torch, name)
    given_values = torch.tensor([0.0, 1.0, float("nan"), float("inf"), -float("inf"), float("nan")])
    values = given_values.to(dtype) if dtype.is_floating_point or dtype.is_complex else torch.ones(6, dtype=dtype)
    fields = {"x": values, "y": values[[0, 1, 2, 2, 3, 1]]}
    with ShardWriter(tmp_path / "d", shard_bytes=20, pack_fields=packed) as writer:
        writer.write_batch(fields)
    report = ShardDataset(tmp_path / "d").verify(deep=True)
    wide = torch.complex64 if dtype.is_complex else torch.float64
    for counted, found in ((report.nan, torch.isnan), (report.infinite, torch.isinf)):
        expected = {field: int(found(numbers.to(wide)).sum()) for field, numbers in fields.items()}
        assert counted == {field: count for field, count in expected.items() if count}
    assert ShardDataset(tmp_path / "d").verify().nan == {}


def test_contents_of_packed_fields_are_looked_at(tmp_path):
    """Of each field, also where what is read at once ends within a row."""
    count, row_bytes = PIECE_BYTES // 11 + 1000, 11
    assert PIECE_BYTES % row_bytes
    bits = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (count, 8), np.uint8))
    flags = torch.zeros(count, 3, dtype=torch.uint8)
    edge = PIECE_BYTES // row_bytes  # of this sample, the first bytes are in one piece and the others in the next
    flags[7, 2] = flags[edge, 1] = 2
    with ShardWriter(tmp_path / "d", shard_bytes="64MiB", pack_fields=["x", "flags"]) as writer:
        writer.write_batch({"x": bits.view(torch.float8_e5m2), "flags": flags.view(torch.bool), "n": np.arange(count)})
    dataset = ShardDataset(tmp_path / "d")
    places = dataset.stored.places["gdsload:rows:0"]
    with pytest.raises(FormatError, match="2 problems in 1 of 1 shards") as caught:
        dataset.verify(deep=True)
    _, entry = entry_at(dataset.shards[0].file, dataset.shards[0].bytes // 4)
    assert (entry.name, entry.shape) == ("gdsload:rows:0", (count, row_bytes))
    begin = entry.begin + places["flags"]
    assert [(one.field, one.offset, one.nbytes, one.samples) for one in caught.value.problems] == [
        ("flags", begin + 7 * row_bytes + 2, 1, (7, 8)),
        ("flags", begin + edge * row_bytes + 1, 1, (edge, edge + 1)),
    ]
    assert "1 values are neither 0 nor 1" in str(caught.value)
