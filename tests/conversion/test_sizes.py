"""Shards have the size asked for, whatever parts a source has, and however wrong it estimates these."""

from __future__ import annotations

import errno
import gzip
import json
import os
import random
from functools import cache
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as tables
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import gdsload
from gdsload.conversion import sizes
from gdsload.conversion.row_source import row_parts
from gdsload.conversion.runner import plan
from gdsload.conversion.sizes import bytes_of_shards, gathered
from gdsload.conversion.source import Part
from gdsload.shards.format.schema import Field, Schema
from tests.conversion import picture_sources
from tests.conversion.contents import pack, picture
from tests.conversion.reading import content


def jpeg(seed, size=(40, 30)):
    noise = np.random.default_rng(seed).integers(0, 256, (size[1] // 8, size[0] // 8, 3), np.uint8)
    return picture(Image.fromarray(noise).resize(size), "JPEG")


def tar_beside_json(folder, files, name="a.tar"):
    members = []
    for number, raw in enumerate(files):
        members += [(f"{number}.jpg", raw), (f"{number}.json", json.dumps({"n": number}).encode())]
    return pack(folder / name, members, mode="w:gz" if name.endswith(".gz") else "w"), "jpg", {}


@cache
def jpegs():
    return [jpeg(number) for number in range(60)]


@pytest.mark.parametrize("options", [{"size": 64}, {}, {"keep_encoded": True}], ids=["sized", "own size", "kept"])
@pytest.mark.parametrize(
    "made",
    [picture_sources.folder, tar_beside_json, picture_sources.parquet, picture_sources.in_memory],
    ids=lambda one: one.__name__,
)
def test_it_is_what_comes_of_it(tmp_path, converted, made, options):
    source, _, own = made(tmp_path, jpegs())
    found = plan(source, workers=1, **own, **options)
    written = converted(source, **own, **options).num_bytes
    padding = 4096 * 8  # headers, and what fills pages
    assert found.nbytes * 0.85 - padding < written < found.nbytes * 1.15 + padding


def test_a_packed_tar(tmp_path):
    large = [jpeg(number, (320, 240)) for number in range(60)]
    assert plan(tar_beside_json(tmp_path, large, "a.tar.gz")[0], size=224, workers=1).nbytes > 60 * 224 * 224 * 3 * 0.7


ASKED = 160 * 2**10
LOWEST, HIGHEST = 0.75, 1.25
RAGGED = Schema({"x": Field("uint8", (None,))})


@cache
def rows(count=9000):
    """Texts and lists whose lengths vary, of several bytes a letter here and there."""
    draw = random.Random(0)
    words = ["a", "bird", "in", "the", "hand", "é", "猫"]
    return [
        {
            "text": " ".join(draw.choices(words, k=draw.randrange(1, 40))),
            "tokens": draw.choices(range(50_000), k=draw.randrange(1, 30)),
            "n": number,
        }
        for number in range(count)
    ]


def text(folder):
    (folder / "a.txt").write_text("".join(f"{row['text']}\n" for row in rows()))
    return folder / "a.txt"


def short_lines(folder):
    (folder / "a.txt").write_text("ab\n" * 100_000)
    return folder / "a.txt"


def json_lines(folder):
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    return folder / "a.jsonl"


def csv(folder):
    (folder / "a.csv").write_text("n,text\n" + "".join(f"{row['n']},{row['text']}\n" for row in rows()))
    return folder / "a.csv"


def parquet(folder, rows_in_group=200):
    found = pa.Table.from_pylist(rows())
    tables.write_table(found, folder / "a.parquet", row_group_size=rows_in_group)
    return folder / "a.parquet"


def large_row_groups(folder):
    return parquet(folder, 2500)


def dataset(_folder):
    return [{"text": row["text"], "tokens": np.array(row["tokens"])} for row in rows()]


def json_files(folder):
    for number in range(5):
        some = rows()[1600 * number : 1600 * number + 1600]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    return folder


def check_sizes(path, at_least=1):
    """All shards but the last have about the size asked for, without what only makes them begin and end at pages."""
    names = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
    *whole, last = [os.path.getsize(path / name) - 3 * 4096 for name in names]
    assert len(whole) >= at_least
    assert [size / ASKED for size in whole if not LOWEST * ASKED <= size <= HIGHEST * ASKED] == []
    assert 0 < last <= HIGHEST * ASKED


@pytest.mark.parametrize(
    "made",
    [text, short_lines, json_lines, json_files, csv, parquet, large_row_groups, dataset],
    ids=lambda one: one.__name__,
)
def test_shards_of_ragged_samples_have_about_the_size_asked_for(tmp_path, made):
    (tmp_path / "s").mkdir()
    gdsload.convert(made(tmp_path / "s"), tmp_path / "out", shard_bytes=ASKED, workers=1)
    check_sizes(tmp_path / "out", at_least=3)


def test_what_is_written_decides_and_not_what_is_read(tmp_path):
    gdsload.convert(json_lines(tmp_path), tmp_path / "some", fields=["tokens"], shard_bytes=ASKED, workers=1)
    check_sizes(tmp_path / "some", at_least=2)


def test_a_packed_file_ends_with_the_only_small_shard(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(json_lines(tmp_path).read_bytes()))
    gdsload.convert(tmp_path / "a.jsonl.gz", tmp_path / "out", shard_bytes=ASKED, workers=1)
    check_sizes(tmp_path / "out")


@given(st.lists(st.integers(0, 4000), max_size=60), st.integers(100, 2000))
def test_parts_come_together_in_order(sizes, asked):
    """Every part is in one task; all tasks but the last give even shards, if their parts are as large as they say."""
    parts = [Part(f"{n}", (n,), 1, size) for n, size in enumerate(sizes)]
    tasks = gathered(None, parts, RAGGED, asked)
    assert [part for task in tasks for part in task] == parts
    for task in tasks[:-1]:
        total = sum(part.nbytes for part in task)
        number = -(-total // bytes_of_shards(None, task, RAGGED, asked))
        assert 0.8 * asked <= total / number <= 1.2 * asked


@given(st.integers(1, 8), st.integers(1000, 10**6), st.floats(0.85, 1.15), st.floats(-0.08, 0.08))
def test_a_task_that_was_misjudged_leaves_no_small_rest(shards, asked, even, wrong):
    """It is filled as a writer fills it, with somewhat more or less than was estimated."""
    total = int(shards * asked * even)
    size = bytes_of_shards(None, [Part("", (0,), 1, total)], RAGGED, asked)
    assert size <= HIGHEST * asked
    if shards == max(round(total / asked), 1):
        actual = int(total * (1 + wrong / shards))
        assert -(-actual // size) == shards


def test_a_part_of_unknown_size_is_alone():
    parts = [Part("a", (0,)), Part("b", (1,)), Part("c", (2,), 1, 10), Part("d", (3,), 1, 10)]
    assert list(map(len, gathered(None, parts, RAGGED, 1000))) == [1, 1, 2]
    assert bytes_of_shards(None, parts[:1], RAGGED, 1000) == 1000


ROWS = 4000


@pytest.fixture(scope="module")
def array(tmp_path_factory):
    """About 4 MiB."""
    file = tmp_path_factory.mktemp("source") / "x.npy"
    np.save(file, np.random.default_rng(0).integers(0, 256, (ROWS, 1024), np.uint8))
    return file


def test_a_shuffle_that_finds_no_room_in_its_second_pass(array, tmp_path, monkeypatch):
    left = iter((2**30, 2**20, 2**20))
    monkeypatch.setattr(sizes.shutil, "disk_usage", lambda path: SimpleNamespace(total=2**30, free=next(left)))
    with pytest.raises(gdsload.DiskFullError, match=r"about 3\.\d* MiB is still to be written; 1 MiB are free"):
        gdsload.convert(array, tmp_path / "out", shard_bytes="300kB", workers=1, shuffle_seed=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("call", "code"), [("pwrite", errno.ENOSPC), ("fsync", errno.EDQUOT)])
def test_a_disk_that_fills_up_meanwhile(array, tmp_path, monkeypatch, call, code):
    gdsload.convert(array, tmp_path / "wanted", shard_bytes="300kB", workers=1)
    original, calls = getattr(os, call), []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) > 20:
            raise OSError(code, os.strerror(code))
        return original(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing)
        with pytest.raises(gdsload.DiskFullError, match=r"; \d.* are free.*it goes on after the"):
            gdsload.convert(array, tmp_path / "out", shard_bytes="300kB", workers=1)
    assert not (tmp_path / "out").exists()
    left = [path.name for path in (tmp_path / ".out.gdsload-convert").iterdir()]
    assert not [name for name in left if name.startswith(".")]  # nothing half made takes room away
    assert gdsload.convert(array, tmp_path / "out", shard_bytes="300kB", workers=1).resumed > 0
    assert content(tmp_path / "out") == content(tmp_path / "wanted")


@pytest.mark.parametrize(("count", "row_bytes", "chunk"), [(2**50, 1, 1), (2**48 + 1, 64, 1000), (2**40, 2**33, 7)])
def test_rows_that_a_file_only_promises_become_a_bounded_number_of_parts(count, row_bytes, chunk):
    parts = row_parts(count, row_bytes, 2**25, chunk=chunk)
    edges = [part.where for part in parts]
    assert len(parts) <= 2**17 + 1
    assert [low for low, _ in edges] == [0, *(high for _, high in edges[:-1])]
    assert edges[-1][1] == count
    assert not any(low % chunk for low, _ in edges)
