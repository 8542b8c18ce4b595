"""What is converted: seeded samples, as one array and as a folder of images."""

from __future__ import annotations

import importlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.workloads import SEED, Workload, generate, hash_rows

__all__ = ["FULL", "SMALL", "Samples", "image_files", "make", "read_image"]

_CLASSES = 8


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of one kind.

    Attributes:
        kind: ``"array"``, one `.npy` file, or ``"images"``, JPEG files in a folder for each class.
        count: how many.
        side: height and width of each; it has three channels of uint8.
    """

    kind: str
    count: int
    side: int

    @property
    def title(self) -> str:
        """For people."""
        what = ".npy file" if self.kind == "array" else "folder of JPEG files"
        return f"{what}, {self.count} × 3×{self.side}×{self.side} uint8"

    @property
    def nbytes(self) -> int:
        """Bytes of the samples as they are written."""
        return self.count * 3 * self.side * self.side

    def to_json(self) -> dict[str, Any]:
        """As it goes into the record and to the workers."""
        return asdict(self)


FULL = (Samples("array", 8192, 224), Samples("images", 24576, 224))
SMALL = (Samples("array", 64, 32), Samples("images", 24, 32))


def make(samples: Samples, path: Path) -> None:
    """Write the samples, and their hashes in order beside them (``.hashes.npy``)."""
    if samples.kind == "array":
        generate(Workload("rows", (3, samples.side, samples.side), "uint8", samples.count, 1), path)
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


def image_files(path: Path) -> list[str]:
    """The images, in order."""
    return sorted(map(str, path.rglob("*.jpg")))


def read_image(file: str) -> NDArray[np.uint8]:
    """An image as uint8 ``[channels, height, width]``."""
    with importlib.import_module("PIL.Image").open(file) as image:
        return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))
