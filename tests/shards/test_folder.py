"""The rules of docs/spec for the bytes on disk and the folder around them."""

import errno
import json
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import Subset

from gdsload import (
    ChecksumError,
    DataLoader,
    DatasetNotFoundError,
    Field,
    FormatError,
    ReadError,
    ShardDataset,
    ShardWriter,
    UnfinishedDatasetError,
    WriteError,
)
from gdsload.errors import Problem
from gdsload.shards import publish as publish_module
from gdsload.shards.format.checksum import BLOCK_BYTES
from gdsload.shards.format.index import parse_index
from gdsload.shards.format.shard import PADDING_PREFIX
from gdsload.shards.opening import load_shard
from tests.shards.failing_calls import failing

RENAME_EXCHANGE = 2  # linux/fs.h


def header_of(path):
    with path.open("rb") as file:
        return load_shard(file.fileno(), str(path)).header


def shards_of(folder):
    return sorted(folder.glob("*.safetensors"))


def poke(path, offset, data):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def change_entry(folder, number, **changes):
    """Have the index say something else of a shard."""
    file = folder / "index.json"
    index = parse_index(file.read_bytes(), "index.json")
    shards = list(index.shards)
    shards[number] = replace(shards[number], **changes)
    file.write_bytes(replace(index, shards=tuple(shards)).to_bytes())


# --- padding, text, offsets, checksums ---


def test_padding_of_written_shards_is_zero(small):
    found = 0
    for path in shards_of(small):
        data = path.read_bytes()
        for name, entry in header_of(path).tensors.items():
            if name.startswith(PADDING_PREFIX):
                assert not any(data[entry.begin : entry.end])
                found += 1
    assert found


def test_verify_reports_padding_that_is_not_zero(small):
    path = shards_of(small)[1]
    padding = next(entry for name, entry in header_of(path).tensors.items() if name.startswith(PADDING_PREFIX))
    poke(path, padding.begin + 5, b"\1")
    with pytest.raises(ChecksumError, match="padding is not zero") as caught:
        ShardDataset(small).verify()
    assert (Problem("padding is not zero", str(path), padding.begin + 5),) == caught.value.problems


def test_text_that_is_no_utf8_is_refused(small):
    path = shards_of(small)[0]
    poke(path, header_of(path).tensors["words"].begin, b"\xff")
    for mmap in (True, False):
        with pytest.raises(FormatError, match="'words' holds a text that is no valid UTF-8"):
            ShardDataset(small, mmap=mmap)[1]


@pytest.mark.parametrize(
    ("number", "value", "sample"),
    [
        *[(0, value, 0) for value in (1, -(2**63), 2**63 - 1)],  # they begin with 0
        *[(2, value, 1 if value < 2 else 2) for value in (1, 7, 2**62, -(2**63))],  # they rise
        *[(4, value, 3) for value in (5, 7, 2**63 - 1, -1)],  # they end with the number of rows
    ],
)
def test_offsets_that_cannot_be_are_refused(tmp_path, number, value, sample):
    folder = tmp_path / "r"
    with ShardWriter(folder, {"x": Field("int16", (None,))}) as writer:
        for length in (2, 0, 3, 1):
            writer.write({"x": np.arange(length, dtype=np.int16)})
    path = shards_of(folder)[0]
    begin = header_of(path).tensors["gdsload:offsets:x"].begin
    poke(path, begin + 8 * number, value.to_bytes(8, "little", signed=True))
    for mmap in (True, False):
        dataset = ShardDataset(folder, mmap=mmap)
        with pytest.raises(FormatError, match="the offsets of a ragged field are damaged") as caught:
            dataset[sample]
        (problem,) = caught.value.problems
        assert (problem.file, problem.field, problem.samples) == (str(path), "x", (sample, sample + 1))
        for other in {0, 1, 2, 3} - {sample}:  # its neighbour has that offset, too
            with suppress(FormatError):
                assert len(dataset[other]["x"]) <= 6
    with pytest.raises(ChecksumError, match="its offsets"):
        ShardDataset(folder).verify()


def test_verify_reports_every_block_that_differs(tmp_path):
    with ShardWriter(tmp_path / "d") as writer:
        writer.write_batch({"x": np.zeros((5, BLOCK_BYTES // 2), np.uint8), "y": np.arange(5)})
    path = shards_of(tmp_path / "d")[0]
    begin = header_of(path).tensors["x"].begin
    for offset in (0, 1, BLOCK_BYTES + 7, 2 * BLOCK_BYTES):
        poke(path, begin + offset, b"\1")
    with pytest.raises(ChecksumError, match="3 problems in 1 of 1 shards") as caught:
        ShardDataset(tmp_path / "d").verify()
    assert [
        (begin, (0, 2)),
        (begin + BLOCK_BYTES, (2, 4)),
        (begin + 2 * BLOCK_BYTES, (4, 5)),
    ] == [(problem.offset, problem.samples) for problem in caught.value.problems]
    assert {("x", str(path))} == {(problem.field, problem.file) for problem in caught.value.problems}


# --- index and shards ---


def refuses_shard(folder, number, message):
    """The shard is refused when it is read, and by verify; the others can be read."""
    for mmap in (True, False):
        dataset = ShardDataset(folder, mmap=mmap)
        first = int(dataset.counts[:number].sum())
        with pytest.raises(FormatError, match=message) as caught:
            dataset[first]
        assert str(shards_of(folder)[number]) == caught.value.file
        assert dataset[0] is not None or number == 0
    with pytest.raises(ChecksumError, match=r"\d problems? in 1 of"):
        ShardDataset(folder).verify()


def test_shard_of_another_schema_is_refused(small, tmp_path):
    with ShardWriter(tmp_path / "other", {"z": Field("int32", (3,))}) as writer:
        writer.write({"z": [1, 2, 3]})
    path = shards_of(small)[1]
    shutil.copy(shards_of(tmp_path / "other")[0], path)
    change_entry(small, 1, samples=1, bytes=path.stat().st_size, sha256=header_of(path).sha256)
    refuses_shard(small, 1, "its fields are Schema.*'z'.*, but the dataset's are")


def test_shard_of_other_columns_is_refused(tmp_path):
    """Of the same fields, but stored in another order."""
    values = {name: np.arange(10, dtype=np.int32) for name in "abcd"}
    for name, rule in (("d", "auto"), ("other", ["a", "b"])):
        with ShardWriter(tmp_path / name, shard_bytes=5 * 16, pack_fields=rule) as writer:
            writer.write_batch(values)
    assert ShardDataset(tmp_path / "d").schema == ShardDataset(tmp_path / "other").schema
    path = shards_of(tmp_path / "d")[1]
    shutil.copy(shards_of(tmp_path / "other")[1], path)
    change_entry(tmp_path / "d", 1, bytes=path.stat().st_size, sha256=header_of(path).sha256)
    refuses_shard(tmp_path / "d", 1, r"packed \['a', 'b'\], but the dataset's are .* packed \['a', 'b', 'c', 'd'\]")


def test_damaged_rows_are_named_with_their_fields(tmp_path):
    count = BLOCK_BYTES // 8
    with ShardWriter(tmp_path / "d", shard_bytes="64MiB") as writer:
        writer.write_batch({name: np.arange(count, dtype=np.int32) for name in "dcba"} | {"text": [""] * count})
    path = shards_of(tmp_path / "d")[0]
    begin = header_of(path).tensors["gdsload:rows:0"].begin
    poke(path, begin + BLOCK_BYTES + 7, b"\xff")
    with pytest.raises(ChecksumError, match="1 problem in 1 of 1 shards") as caught:
        ShardDataset(tmp_path / "d").verify()
    (problem,) = caught.value.problems
    assert (problem.field, problem.offset, problem.nbytes) == ("d, c, b, a", begin + BLOCK_BYTES, BLOCK_BYTES)
    assert problem.samples == (count // 2, count)


def test_missing_shard_is_refused_at_once(small):
    paths, before = shards_of(small), ShardDataset(small).counts.tolist()
    paths[1].unlink()
    paths[2].unlink()
    with pytest.raises(FormatError, match="2 of . shards are missing or of another length") as caught:
        ShardDataset(small)
    counts = np.cumsum([0, *before])
    assert list(caught.value.problems) == [
        Problem("the shard is missing", str(paths[number]), samples=(counts[number], counts[number + 1]))
        for number in (1, 2)
    ]
    assert caught.value.samples == ((counts[1], counts[3]),)


@pytest.mark.parametrize("change", [-4096, 4096, -1, 1])
def test_shard_of_another_length_is_refused_at_once(small, change):
    path = shards_of(small)[1]
    size = path.stat().st_size
    os.truncate(path, size + change)
    with pytest.raises(FormatError, match="1 of . shards are missing or of another length") as caught:
        ShardDataset(small)
    message = f"the shard has {size + change} bytes, but the index says {size}"
    assert (message, str(path)) == (caught.value.problems[0].message, caught.value.problems[0].file)


def test_shard_with_another_header_is_refused(small, tmp_path, write_small):
    """Two shards that changed places, and a shard of another dataset of the same form."""
    write_small(tmp_path / "other", mark=1)
    paths = shards_of(small)
    twin = shards_of(tmp_path / "other")[1]
    assert paths[1].stat().st_size == twin.stat().st_size
    shutil.copy(twin, paths[1])
    refuses_shard(small, 1, "its header is not the one that the index describes")


def test_shard_with_another_count_is_refused(small):
    samples = int(ShardDataset(small).counts[1])
    change_entry(small, 1, samples=samples + 1)
    refuses_shard(small, 1, f"it holds {samples} samples, but the index says {samples + 1}")


def test_empty_dataset_is_an_index_alone(tmp_path):
    with ShardWriter(tmp_path / "d", {"x": "str"}):
        pass
    assert os.listdir(tmp_path / "d") == ["index.json"]
    assert json.loads((tmp_path / "d/index.json").read_text())["shards"] == []
    dataset = ShardDataset(tmp_path / "d")
    assert (len(dataset), len(dataset.shards), dataset.__getitems__([])) == (0, 0, [])
    assert dataset.verify().shards == 0
    with pytest.raises(IndexError, match="sample 0 does not exist: the dataset has 0"):
        dataset[0]


# --- becoming visible ---


@pytest.fixture
def events(monkeypatch):
    """The calls of a writer: ("sync", path) and ("rename", source, target, flags), as they happen."""
    found = []

    def fsync(fd, real=os.fsync):
        found.append(("sync", os.readlink(f"/proc/self/fd/{fd}")))
        real(fd)

    def rename(source, target, flags, real=publish_module.renameat2):
        found.append(("rename", source, target, flags, sorted(os.listdir(source))))
        return real(source, target, flags)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(publish_module, "renameat2", rename)
    return found


def test_folder_becomes_visible_by_one_rename_when_all_is_synced(tmp_path, write_small, events):
    write_small(tmp_path / "d")
    (position,) = (number for number, event in enumerate(events) if event[0] == "rename")
    _, folder, target, _, names = events[position]
    assert (target, names) == (str(tmp_path / "d"), sorted(os.listdir(tmp_path / "d")))
    parent, *synced = [path for _, path in events[:position]]
    assert parent == str(tmp_path)  # for the lock
    assert {folder, *(f"{folder}/{name}" for name in names)} == set(synced)
    assert [*(path.name for path in shards_of(tmp_path / "d")), "index.json"] == [Path(one).name for one in synced[:-1]]
    assert [("sync", str(tmp_path))] == events[position + 1 :]
    assert os.listdir(tmp_path) == ["d"]


def test_overwriting_exchanges_the_folders(tmp_path, write_small, events, expect):
    write_small(tmp_path / "d")
    del events[:]
    write_small(tmp_path / "d", mark=1, overwrite=True)
    assert [(str(tmp_path / "d"), RENAME_EXCHANGE)] == [event[2:4] for event in events if event[0] == "rename"]
    expect(ShardDataset(tmp_path / "d"), mark=1)
    assert os.listdir(tmp_path) == ["d"]


def test_failed_writer_leaves_the_old_dataset(small, write_small, expect):
    message = "the dataset cannot be moved to its place: No space left on device"
    with failing(publish_module, "renameat2", errno.ENOSPC), pytest.raises(WriteError, match=message):
        write_small(small, mark=1, overwrite=True)
    expect(ShardDataset(small), mark=0)
    assert os.listdir(small.parent) == ["small"]


# --- what is refused ---


def test_shards_without_an_index_are_refused(small):
    (small / "index.json").unlink()
    with pytest.raises(UnfinishedDatasetError, match="gdsload shards, but no index.json: its writer never finished"):
        ShardDataset(small)
    assert ShardDataset(shards_of(small)[0])[0]


@pytest.mark.parametrize(
    ("nbytes", "says"),
    [*((count, "it is no valid JSON") for count in (0, 1, 300)), (2**40, "it has .* bytes; the most is 1073741824")],
)
def test_shards_with_a_damaged_index_are_refused(small, nbytes, says):
    """One that is too long is not even read."""
    os.truncate(small / "index.json", nbytes)
    with pytest.raises(FormatError, match=f"no valid index of a dataset(.|\n)*{says}") as caught:
        ShardDataset(small)
    assert str(small / "index.json") == caught.value.file


def test_shards_may_be_links_into_folders_of_shards(small, expect):
    """The whole of it is in tests/shards/test_shard_folders.py."""
    before = ShardDataset(small).digest
    folder = small.parent / "anything.gdsload-0123456789ab"
    folder.mkdir()
    for path in shards_of(small)[1:]:
        path.rename(folder / path.name)
        path.symlink_to(folder / path.name)
    (small.parent / "link").symlink_to(small)
    expect(ShardDataset(small.parent / "link"))
    assert ShardDataset(small).digest == before


def other_kind(path, kind):
    """Put something else in place of a file."""
    if kind == "link":
        path.rename(path.parent.parent / "elsewhere")
        path.symlink_to(path.parent.parent / "elsewhere")
        return
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.mkdir()


@pytest.mark.parametrize(("kind", "says"), [
    ("link", "which is in no folder of shards"), ("pipe", "no regular file"), ("folder", "no regular file"),
])  # fmt: skip
def test_index_that_is_no_file_of_the_folder_is_refused(small, kind, says):
    other_kind(small / "index.json", kind)
    with pytest.raises(ReadError, match=says):
        ShardDataset(small)


@pytest.mark.parametrize(("kind", "opened", "later"), [
    ("link", "symbolic link to .*elsewhere, which is in no folder of shards", "in no folder of shards"),
    ("pipe", "the shard is no regular file", "no regular file"), ("folder", "the shard is no regular file", "no regular"),
])  # fmt: skip
def test_shard_that_is_no_file_of_the_folder_is_refused(small, kind, opened, later):
    path, dataset = shards_of(small)[1], ShardDataset(small)
    other_kind(path, kind)
    with pytest.raises(FormatError, match=f"1 of . shards are missing or of another length.*(\n.*)*{opened}"):
        ShardDataset(small)
    with pytest.raises(ReadError, match=later):
        dataset[int(dataset.counts[0])]
    with pytest.raises(ChecksumError, match=later):
        dataset.verify()
    if kind == "pipe":
        with pytest.raises(ReadError, match="it is no regular file"):
            ShardDataset(path)


def test_files_that_the_index_does_not_name_are_ignored(small, expect):
    digest = ShardDataset(small).digest
    shutil.copy(shards_of(small)[0], small / "shard-99999.safetensors")
    (small / "damaged.safetensors").write_bytes(b"no shard")
    os.mkfifo(small / "pipe.safetensors")
    (small / "notes").mkdir()
    dataset = ShardDataset(small)
    expect(dataset)
    assert (digest, 20) == (dataset.digest, len(dataset))
    assert len(dataset.shards) == dataset.verify().shards


def test_nothing_is_there(tmp_path):
    with pytest.raises(DatasetNotFoundError, match="there is no dataset here: No such file"):
        ShardDataset(tmp_path / "none")
    with pytest.raises(DatasetNotFoundError, match="neither index.json nor .safetensors files. Pass the folder"):
        ShardDataset(tmp_path)


def test_errors_name_samples_of_the_dataset_also_where_some_shards_are_left_out(tmp_path):
    with ShardWriter(tmp_path / "r", {"x": Field("int16", (None,))}, shard_bytes=400) as writer:
        for _ in range(100):
            writer.write({"x": np.zeros(3, np.int16)})
    dataset = ShardDataset(tmp_path / "r")
    third, start = shards_of(tmp_path / "r")[2], int(dataset.counts[:2].sum())
    poke(third, header_of(third).tensors["gdsload:offsets:x"].begin + 8 * 3, (-1).to_bytes(8, "little", signed=True))
    wanted = Subset(ShardDataset(tmp_path / "r"), range(start + 1, start + 3))
    with DataLoader(wanted, 2, device="cpu") as loader, pytest.raises(FormatError) as caught:
        list(loader)
    assert loader.cache.shards == 1
    assert caught.value.problems[0].samples == (start + 2, start + 3)


def test_a_folder_that_may_not_be_read_is_named(tmp_path):
    message = f"{tmp_path}: the dataset cannot be looked at: Permission denied. Give yourself"
    with failing(os, "listdir", errno.EACCES), pytest.raises(ReadError, match=message):
        ShardDataset(tmp_path)
