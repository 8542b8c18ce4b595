"""Works that a sweep of faults goes over: what is there before, what is done, and what is right afterwards."""

from __future__ import annotations

import csv
import ctypes
import errno
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from gdsload import BlockShuffle, DataLoader, Field, ShardDataset, ShardWriter, convert
from tests.shards.small_dataset import write_small

DRIVES = ("first", "second")
SOURCE = "source"
BLOB = {"x": Field("int32", (2**14,))}


@dataclass(frozen=True)
class Work:
    """One work.

    Attributes:
        prepare: puts into an empty folder what is there before.
        do: the work, in that folder; `again` is true of a second time, which may replace what the first one made.
            Returns what can be compared.
        content: what is at the target, if the work has one; raises if that is no whole dataset.
    """

    prepare: Callable[[Path], object]
    do: Callable[[Path, bool], Any]
    content: Callable[[Path], Any] | None = None


def seen_in(path: Path) -> list[Any]:
    """All samples of a dataset, as lists."""
    dataset = ShardDataset(path)
    return [
        {name: value.tolist() if hasattr(value, "tolist") else value for name, value in sample.items()}
        for sample in dataset.__getitems__(range(len(dataset)))
    ]


def write(root: Path, again: bool, spread: tuple[str, ...] = (), overwrite: bool = False, out: str = "out") -> None:
    over = [root / name for name in spread]
    write_small(root / out, mark=1, overwrite=again or overwrite, spread_over=over)


def convert_to(
    root: Path, again: bool, spread: tuple[str, ...] = (), overwrite: bool = False, out: str = "out", **options: Any
) -> None:
    over = [root / name for name in spread]
    convert(root / SOURCE, root / out, workers=1, overwrite=again or overwrite, spread_over=over, **options)


def load(root: Path, again: bool, **options: Any) -> list[Any]:
    with DataLoader(ShardDataset(root / "out"), 3, device="cpu", ragged="padded", ranks=(0, 1), **options) as loader:
        return [repr(batch) for batch in loader]


def verify(root: Path, again: bool) -> object:
    return ShardDataset(root / "out").verify(deep=True)


def nothing(root: Path) -> None:
    """Leave the folder empty."""


def old(root: Path) -> None:
    write_small(root / "out")


def write_aside(root: Path, again: bool) -> None:
    """Replace a dataset as where the file system cannot exchange two folders."""
    with mock.patch("gdsload.shards.publish.renameat2", return_value=-1):
        ctypes.set_errno(errno.ENOSYS)
        write(root, again, overwrite=True)


def content_aside(root: Path) -> list[Any] | None:
    """As `content`; the one that was moved aside, which the next writer moves back, if there is no other."""
    (aside, *_) = [*root.glob(".out.gdsload-*.old"), root / "out"]
    return content(root) or seen_in(aside)


def drives(root: Path) -> None:
    for name in DRIVES:
        (root / name).mkdir()


def spread_old(root: Path) -> None:
    drives(root)
    write_small(root / "out", spread_over=[root / name for name in DRIVES])


def arrays(source: Path) -> None:
    source.mkdir()
    for name, width in (("x", 3), ("y", 2)):
        np.save(source / f"{name}.npy", np.arange(20 * width, dtype=np.int32).reshape(20, width))


def table(source: Path) -> None:
    source.mkdir()
    for part in range(2):
        with open(source / f"part-{part}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["a", "b"], *([row, f"text {row}"] for row in range(part * 9, part * 9 + 9))])


def lines(source: Path) -> None:
    source.mkdir()
    (source / "part.jsonl").write_text("".join(json.dumps({"a": row, "b": f"t{row}"}) + "\n" for row in range(15)))


def images(source: Path) -> None:
    for number in range(4):
        folder = source / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 5, 3), number * 9, np.uint8)).save(folder / f"{number}.png")


def parquet(source: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    source.mkdir()
    pyarrow.parquet.write_table(pa.table({"a": range(15), "b": [f"t{row}" for row in range(15)]}), source / "p.parquet")


def blob(root: Path) -> None:
    """Samples enough for memory to run out: 6 MB."""
    with ShardWriter(root / "out", BLOB, shard_bytes=2**21) as writer:
        writer.write_batch(blob_batch())


@cache
def blob_batch() -> dict[str, Any]:
    return {"x": np.arange(96 * 2**14, dtype=np.int32).reshape(96, 2**14)}


def write_blob(root: Path, again: bool) -> None:
    with ShardWriter(root / "out", BLOB, shard_bytes=2**21, overwrite=again) as writer:
        writer.write_batch(blob_batch())


def blob_array(root: Path) -> None:
    (root / SOURCE).mkdir()
    np.save(root / SOURCE / "x.npy", blob_batch()["x"])


def load_blob(root: Path, again: bool) -> list[Any]:
    with DataLoader(ShardDataset(root / "out"), 16, device="cpu", ranks=(0, 1), shuffle="full") as loader:
        return [int(batch["x"].sum()) for batch in loader]


def blob_sums(root: Path) -> list[Any] | None:
    """As `content`, of the samples' sums."""
    if not os.path.lexists(root / "out"):
        return None
    return [int(sample["x"].sum()) for sample in ShardDataset(root / "out").__getitems__(range(96))]


def source(make: Callable[[Path], None], *more: Callable[[Path], None]) -> Callable[[Path], None]:
    def prepare(root: Path) -> None:
        make(root / SOURCE)
        for one in more:
            one(root)

    return prepare


def content(root: Path, out: str = "out") -> list[Any] | None:
    """The samples at the target; None if nothing is there."""
    return seen_in(root / out) if os.path.lexists(root / out) else None


WORKS = {
    "write": Work(nothing, write, content),
    "overwrite": Work(old, partial(write, overwrite=True), content),
    "spread": Work(drives, partial(write, spread=DRIVES), content),
    "convert arrays": Work(source(arrays), convert_to, content),
    "convert csv over": Work(source(table, old), partial(convert_to, overwrite=True), content),
    "convert jsonl": Work(source(lines), convert_to, content),
    "convert images": Work(source(images), convert_to, content),
    "convert parquet": Work(source(parquet), convert_to, content),
    "convert shuffled": Work(source(table, drives), partial(convert_to, shuffle_seed=1, spread=DRIVES), content),
    "convert spread": Work(source(table, drives), partial(convert_to, spread=DRIVES), content),
    "load mapped": Work(old, partial(load, shuffle="full")),
    "load by calls": Work(old, partial(load, shuffle=BlockShuffle(), mmap=False)),
    "verify": Work(old, verify),
}
HUNGRY = {
    "write much": Work(nothing, write_blob, blob_sums),
    "convert much": Work(blob_array, convert_to, blob_sums),
    "load much": Work(blob, load_blob),
    "verify much": Work(blob, verify),
}
"""Works that memory is to run out for."""
_KEPT = ("write", "overwrite", "spread", "convert arrays", "convert csv over", "convert shuffled", "convert spread")
POWER = {f"power {name}": WORKS[name] for name in _KEPT} | {
    "power write deep": Work(nothing, partial(write, out="a/b/out"), partial(content, out="a/b/out")),
    "power convert deep": Work(source(arrays), partial(convert_to, out="a/b/out"), partial(content, out="a/b/out")),
    "power overwrite aside": Work(old, write_aside, content_aside),
    "power spread over": Work(spread_old, partial(write, spread=DRIVES, overwrite=True), content),
}
"""Works that power is lost in."""
