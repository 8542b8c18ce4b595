"""Inputs of strangers, each as a function of bytes: an error of gdsload's, or what a plain reading finds in them.

Anything else is a fault: another exception, or values, shapes or positions that differ.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import logging
import os
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from gdsload import DataLoader, FormatError, GdsloadError, Mix, ShardDataset, ShardWriter
from gdsload.transforms import DecodeImage
from tests.fuzz.plain import PAGE, PlainShard, forge, row_bytes, with_length

MOST_SAMPLES = 32
"""Samples that are compared, of the first and the last; others are promised by headers alone."""
MOST_DATA_BYTES = 2**16
FIELDS = {
    "r": {"dtype": "int32", "shape": [None]},
    "p": {"dtype": "float32", "shape": [None, 2]},
    "t": {"dtype": "str"},
    "x": {"dtype": "int16", "shape": [3]},
}
PACKED = {
    "fields": {**{name: {"dtype": "int32", "shape": []} for name in "abcd"}, "e": {"dtype": "bool", "shape": [3]}}
}


class Targets:
    """The targets, by name.

    Args:
        folder: an empty folder, for their files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: dict[str, Callable[[bytes], bool]] = {
            "header": self.header, "index": self.index, "offsets": self.offsets, "packed": self.packed,
            "images": self.images, "state": self.state,
        }  # fmt: skip
        self._loaders: list[tuple[DataLoader, dict[str, Any]]] = []
        torch.manual_seed(0)  # loaders without a seed draw one
        warnings.simplefilter("ignore")  # Pillow's, of images
        logging.disable()  # of zeros in the place of images

    def header(self, data: bytes) -> bool:
        """A header's text, NUL and the data; or a whole file, if it does not begin with a brace.

        Each target returns whether there were batches.
        """
        text, _, tail = data.partition(b"\0")
        if text[:1] != b"{":
            return self._shard(data)
        raw = with_length(text)
        return self._shard(raw + tail.ljust(promised(raw), b"\1"))

    def index(self, data: bytes) -> bool:
        """The text of an index; its digests are made right."""
        folder, raws = self._two_shards()
        put(folder / "index.json", with_digests(data))
        try:
            dataset = ShardDataset(folder)
        except GdsloadError as error:
            check_places(error)
            return False
        named = [shard["file"] for shard in json.loads(data)["shards"]]
        return compare(dataset, [PlainShard(raws[name]) for name in named], zlib.crc32(data))

    def offsets(self, data: bytes) -> bool:
        """Offsets of three ragged fields, and their values.

        After an even byte there are 12 lengths of a byte each; after an odd one, the 15 numbers as they are, for 10 and
        9 rows and a text of any length.
        """
        if not data or data[0] % 2 == 0:
            lengths = data[1:13].ljust(12, b"\2")
            ends = [[0, *itertools.accumulate(lengths[at : at + 4])] for at in (0, 4, 8)]
            numbers, values = struct.pack("<15q", *itertools.chain(*ends)), data[13:]
            rows = [end[-1] for end in ends]
        else:
            numbers, values, rows = data[1:121], data[121:], [10, 9, max(len(data) - 233, 0)]
        contents = {f"gdsload:offsets:{name}": numbers[40 * place :][:40] for place, name in enumerate("rpt")}
        for name, size in (("r", 4 * rows[0]), ("p", 8 * rows[1]), ("t", rows[2])):
            contents[name], values = values[:size].ljust(size, name.encode()), values[size:]
        return self._shard(forge(FIELDS, 4, contents))

    def packed(self, data: bytes) -> bool:
        """Fields and packed columns as JSON, NUL, and rows."""
        text, _, rows = data.partition(b"\0")
        try:
            said = json.loads(text)
            fields, packed, samples = said["fields"], said["packed"], said["samples"]
            if not 0 <= samples <= 64 or sum(map(row_bytes, fields.values())) * 64 > 2**22:
                return False
            raw = forge(fields, samples, {"gdsload:rows:0": rows, "gdsload:rows:1": rows[7:]}, packed)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, MemoryError):
            return False  # no shard that it could be in; the target `header` has those
        return self._shard(raw)

    def images(self, data: bytes) -> bool:
        """An encoded image."""
        path = self.folder / "image.safetensors"
        put(path, forge({"i": {"dtype": "image", "codecs": ["jpeg", "png", "webp"]}}, 1, {
            "gdsload:offsets:i": bytes(8) + len(data).to_bytes(8, "little"), "i": data,
        }))  # fmt: skip
        chosen = zlib.crc32(data)
        way = [None, 8, (5, 300)][chosen % 3], ["raise", "zeros"][chosen // 3 % 2]
        decode = DecodeImage(size=way[0], on_error=way[1], max_pixels=2**20)
        try:
            with DataLoader(path, 1, decode={"i": decode}, device="cpu", ahead=False, ranks=(0, 1)) as loader:
                (batch,) = loader
        except GdsloadError:
            return False
        image = batch["i"][0]
        if not batch.get("i.decoded", torch.ones(1))[0]:
            assert not image.any()
            return False
        assert image.dtype == torch.uint8
        assert image.ndim == 3
        if way[0] is None:
            expect_pixels(image, data)
        else:
            assert image.shape == (3, *np.broadcast_to(way[0], 2))
        return True

    def state(self, data: bytes) -> bool:
        """The number of a loader, as a digit, and a state as JSON."""
        if not self._loaders:
            self._loaders = list(loaders(self._two_shards()[0]))
        try:
            state = json.loads(data[1:])
        except (ValueError, RecursionError):
            return False
        loader, options = self._loaders[data[0] % len(self._loaders)]
        try:
            loader.load_state_dict(state)
            said = loader.state_dict()
            found = [batch["index"].tolist() for batch in loader]
        except GdsloadError:
            return False
        assert state.items() >= said.items(), said
        if state["seed"] is None:  # the state of a loader that has drawn none yet: any order will do
            return True
        with DataLoader(**{**options, "seed": int(state["seed"])}) as other:
            other.set_epoch(state["epoch"])
            expected = [batch["index"].tolist() for batch in other][-(-state["position"] // 4) :]
            expected = expected or [batch["index"].tolist() for batch in other]  # of the next epoch
        assert found == expected, f"{found}, not {expected}"
        return True

    def _shard(self, raw: bytes) -> bool:
        path = self.folder / "shard.safetensors"
        put(path, raw)
        try:
            dataset = ShardDataset(path, mmap=bool(len(raw) // PAGE % 2))
        except GdsloadError as error:
            check_places(error)
            return False
        return compare(dataset, [PlainShard(raw)], zlib.crc32(raw))

    def _two_shards(self) -> tuple[Path, dict[str, bytes]]:
        folder = self.folder / "dataset"
        if not folder.exists():
            write_two(folder)
        return folder, {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


def check_places(error: GdsloadError) -> None:
    """Problems are at places that their files have. An index may name files that are not there."""
    for problem in error.problems if isinstance(error, FormatError) else ():
        size = os.path.getsize(problem.file) if os.path.exists(problem.file) else 0
        assert 0 <= (problem.offset or 0) <= size, f"{problem} is at no place of its file"


def put(path: Path, raw: bytes) -> None:
    """Put a new file at a path: the one before it may still be mapped."""
    path.with_suffix(".new").write_bytes(raw)
    os.replace(path.with_suffix(".new"), path)


def write_two(folder: Path) -> None:
    with ShardWriter(folder, {"x": "int32", "t": "str"}, shard_bytes=80) as writer:
        for number in range(8):
            writer.write({"x": number, "t": "text"[: number % 5]})


def promised(raw: bytes) -> int:
    """How many bytes of data a header promises, as far as they are made."""
    try:
        tree = json.loads(raw[8:])
        ends = [entry["data_offsets"][1] for name, entry in tree.items() if name != "__metadata__"]
        return max(0, min(int(max(ends, default=0)), MOST_DATA_BYTES))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, OverflowError):
        return PAGE


def with_digests(text: bytes) -> bytes:
    """An index with the digests that belong to it; unchanged if it is no JSON object."""

    def digest(value: Any) -> str:
        return hashlib.sha256(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()

    try:
        tree = json.loads(text)
        said = {name: value for name, value in tree.items() if name not in ("sha256", "metadata", "metadata_sha256")}
        if "metadata" in tree:
            tree["metadata_sha256"] = digest(tree["metadata"])
            images = any(field["dtype"] == "image" for field in tree["schema"].values())
            said["version"] = 3 if images else 2 if "packed" in tree else 1
        return json.dumps({**tree, "sha256": digest(said)}).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return text


def as_bytes(value: Any) -> bytes:
    """The bytes of a sample's field."""
    if isinstance(value, torch.Tensor):
        return value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    return value.encode() if isinstance(value, str) else bytes(value)


def compare(dataset: ShardDataset, plain: list[PlainShard], chosen: int) -> bool:
    """Compare samples and batches of a dataset with its shards; return whether there were any."""
    total = len(dataset)  # what the index says, which may be false until a shard is read
    ids = list(range(total)) if total <= MOST_SAMPLES else [0, 1, total // 2, total - 1]
    try:
        samples = dataset.__getitems__(ids)
        dataset.verify(deep=True)
    except GdsloadError:
        samples = []
    options: dict[str, Any] = {"shuffle": [False, "full", "block"][chosen % 3], "ragged": "offsets", "ahead": False}
    for number, sample in zip(ids, samples, strict=bool(samples)):
        expect(sample, plain, number)
    try:
        with DataLoader(dataset, 3, **options, device="cpu", ranks=(0, 1), with_index=True) as loader:
            batches = list(itertools.islice(loader, MOST_SAMPLES // 3 + 1))
    except GdsloadError:
        return bool(samples)
    assert total == sum(shard.samples for shard in plain) or not batches
    for batch in batches:
        for row, number in enumerate(batch["index"].tolist()):
            expect({name: row_of_batch(value, row) for name, value in batch.items() if name != "index"}, plain, number)
    if total <= MOST_SAMPLES:
        assert sorted(number for batch in batches for number in batch["index"].tolist()) == ids
        assert all(shard.sound for shard in plain), "samples that must be refused"
    return True


def row_of_batch(value: Any, row: int) -> Any:
    if isinstance(value, tuple):
        values, offsets = value
        return values[offsets[row] : offsets[row + 1]]
    return value[row]


def expect(sample: dict[str, Any], plain: list[PlainShard], number: int) -> None:
    """Compare a sample with the shard that has it."""
    for shard in plain:
        if number < shard.samples:
            break
        number -= shard.samples
    assert sample.keys() == shard.fields.keys()
    for name, value in sample.items():
        shape, raw = shard.value(number, name)
        shown = as_bytes(value)
        if shard.fields[name]["dtype"] == "bool":
            shown, raw = (bytes(map(bool, one)) for one in (shown, raw))
        found = list(value.shape) if isinstance(value, torch.Tensor) else [len(shown)]
        assert (found, shown) == (shape, raw), f"{name} of {number}: {value!r}, not {shape} {raw!r}"
        if isinstance(value, torch.Tensor):
            assert str(value.dtype) == f"torch.{shard.fields[name]['dtype']}"


def expect_pixels(image: torch.Tensor, data: bytes) -> None:
    """Compare an image that keeps its size with Pillow's; decoders of JPEGs differ in their arithmetic."""
    with Image.open(io.BytesIO(data)) as opened:
        codec, upright = opened.format, opened
        with suppress(SyntaxError):  # of an orientation that is none
            upright = ImageOps.exif_transpose(opened)
        assert image.shape == (3, upright.height, upright.width)
        if codec == "PNG" and not opened.mode.startswith("I"):
            assert torch.equal(image, torch.from_numpy(np.array(upright.convert("RGB"))).permute(2, 0, 1))


@cache
def epoch_ids(epoch: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(epoch).permutation(7)


def loaders(folder: Path) -> Iterator[tuple[DataLoader, dict[str, Any]]]:
    """Loaders with the ways to draw samples, and the options of each."""
    dataset = ShardDataset(folder)
    mix = Mix({"a": dataset, "b": dataset}, {"a": 0.7, "b": 0.3}, samples=10)
    ways = [{"shuffle": False}, {"shuffle": "full", "seed": None}, {"shuffle": "block", "tail": "pad"},
            {"sampler": epoch_ids}, {"dataset": mix, "shuffle": True}, {"shuffle": True, "drop_last": True}]  # fmt: skip
    for way in ways:
        options = {"dataset": dataset, "batch_size": 4, "device": "cpu", "ahead": False, "ranks": (0, 1)}
        options |= {"with_index": True, "seed": 0, **way}
        yield DataLoader(**options), options
