"""The data to convert: seeded samples, as one array, as a folder of images, and as a table."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.workloads import SEED, Workload, generate, hash_rows

__all__ = ["COLUMNS", "FULL", "SMALL", "Samples", "image_files", "make", "read_image", "table_rows"]

COLUMNS = {"id": "int64", "x": "float64", "y": "float64", "label": "int64"}
_CLASSES = 8
_LINES = 100_000


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of one kind.

    Attributes:
        kind: ``"array"``, one `.npy` file; ``"images"``, JPEG files in a folder for each class; or ``"table"``, a CSV
            file of `COLUMNS`.
        count: how many.
        side: height and width of an image, which has three channels of uint8; 0 for a table.
    """

    kind: str
    count: int
    side: int = 0

    @property
    def title(self) -> str:
        """For people."""
        if self.kind == "table":
            return f"CSV file, {self.count} rows × {', '.join(f'{name} {dtype}' for name, dtype in COLUMNS.items())}"
        what = ".npy file" if self.kind == "array" else "folder of JPEG files"
        return f"{what}, {self.count} × 3×{self.side}×{self.side} uint8"

    @property
    def nbytes(self) -> int:
        """Bytes of the samples as they are written."""
        of_row = sum(np.dtype(dtype).itemsize for dtype in COLUMNS.values())
        return self.count * (of_row if self.kind == "table" else 3 * self.side * self.side)

    @property
    def file_name(self) -> str:
        """The name of their file or folder, in the folder of the workload."""
        return {"array": "rows.npy", "images": "images", "table": "rows.csv"}[self.kind]

    def to_json(self) -> dict[str, Any]:
        """As it goes into the record and to the workers."""
        return asdict(self)


FULL = (Samples("array", 8192, 224), Samples("images", 24576, 224), Samples("table", 2_000_000))
SMALL = (Samples("array", 64, 32), Samples("images", 24, 32), Samples("table", 300))


def make(samples: Samples, path: Path) -> None:
    """Write the samples, and their hashes in order beside them (``.hashes.npy``)."""
    if samples.kind == "array":
        generate(Workload("rows", (3, samples.side, samples.side), "uint8", samples.count, 1), path)
        return
    if samples.kind == "table":
        _make_table(samples, path)
        return
    pillow = importlib.import_module("PIL.Image")
    random = np.random.default_rng(SEED)
    hashes = []
    for number in range(samples.count):
        file = path / f"class-{number * _CLASSES // samples.count}" / f"{number:06d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        coarse = random.integers(0, 256, (samples.side // 8, samples.side // 8, 3), np.uint8)
        size = (samples.side, samples.side)
        # Smooth, with some noise: about as many bytes as a photograph.
        smooth = np.asarray(pillow.fromarray(coarse).resize(size, pillow.Resampling.BICUBIC), np.int16)
        noisy = (smooth + random.integers(-8, 8, smooth.shape)).clip(0, 255).astype(np.uint8)
        pillow.fromarray(noisy).save(file, "JPEG", quality=85)
        hashes.append(hash_rows(read_image(str(file))[None]))
    np.save(path.with_suffix(".hashes.npy"), np.concatenate(hashes))


def _make_table(samples: Samples, path: Path) -> None:
    random, ids = np.random.default_rng(SEED), np.arange(samples.count)
    x, y = random.standard_normal((2, samples.count)).round(6)
    columns = {"id": ids, "x": x, "y": y, "label": random.integers(0, 1000, samples.count)}
    with open(path, "w", encoding="ascii") as file:
        file.write(",".join(COLUMNS) + "\n")
        for low in range(0, samples.count, _LINES):
            rows = zip(*(column[low : low + _LINES].tolist() for column in columns.values()), strict=True)
            file.writelines(",".join(map(repr, row)) + "\n" for row in rows)
    np.save(path.with_suffix(".hashes.npy"), hash_rows(table_rows(columns)))


def table_rows(columns: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """The rows of a table as bytes ``[rows, bytes]``; a column of another type is refused."""
    listed = [np.ascontiguousarray(columns[name]) for name in COLUMNS]
    if [str(column.dtype) for column in listed] != list(COLUMNS.values()):
        raise ValueError(f"the columns are {[str(column.dtype) for column in listed]}")
    return np.concatenate([column.view(np.uint8).reshape(len(column), -1) for column in listed], axis=1)


def image_files(path: Path) -> list[str]:
    """The images, in order."""
    return sorted(map(str, path.rglob("*.jpg")))


def read_image(file: str) -> NDArray[np.uint8]:
    """An image as uint8 ``[channels, height, width]``."""
    with importlib.import_module("PIL.Image").open(file) as image:
        return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))
