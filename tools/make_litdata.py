"""Write the LitData chunks that the tests read, with the library that owns the format.

    .venv/bench/bin/python tools/make_litdata.py [FOLDER]

gdsload's own tests read what is in ``tests/data/litdata``, which litdata 0.2.76 wrote, with zstd and pyarrow installed.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data" / "litdata"
COUNT = 7
TENSORS = (torch.float32, torch.float64, torch.complex64, torch.float16, torch.uint8, torch.int64, torch.bool)
ARRAYS = (np.int8, np.int16, np.uint32, np.float16, np.float64, np.complex64, np.bool_)


def leaves() -> Iterator[dict[str, Any]]:
    """Samples of every kind of value but images and pickles; types of arrays may differ from sample to sample."""
    for number in range(COUNT):
        yield {
            "int": number - 3,
            "float": number / 3,
            "bool": number % 2 == 0,
            "str": "né" * number,
            "bytes": bytes(range(number)),
            "tensor": torch.arange(2 * number).reshape(2, number).to(TENSORS[number]),
            "vector": torch.arange(number, dtype=torch.int16),
            "array": np.arange(2 * number).reshape(2, number).astype(ARRAYS[number]),
            "row": np.arange(number, dtype=np.uint16),
        }


def pairs() -> Iterator[list[Any]]:
    """Samples that are lists."""
    return ([number, torch.full((2, 2), number)] for number in range(COUNT))


def rows() -> Iterator[dict[str, Any]]:
    """Samples that are stored as an Arrow table, if pyarrow is there."""
    return ({"text": "né" * number, "n": number, "ids": list(range(number))} for number in range(COUNT))


def tokens() -> Iterator[torch.Tensor]:
    """Documents of tokens."""
    return (torch.arange(3 * number, dtype=torch.int32) for number in range(COUNT))


def picture(number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Pixels, ``[height, width, channels]``."""
    plane = np.add.outer(np.arange(8), np.arange(6 + number)).astype(np.uint8) * 9
    return np.stack([plane, plane[::-1], 255 - plane], axis=2)


def images() -> Iterator[dict[str, Any]]:
    """Samples of images, as Pillow has them."""
    from PIL import Image

    for number in range(3):
        colours = Image.fromarray(picture(number))
        encoded = io.BytesIO()
        colours.save(encoded, "JPEG")
        yield {"jpeg": Image.open(encoded), "pil": colours}


def write(folder: Path) -> None:
    """Write the datasets into a folder."""
    from litdata import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    everything: dict[str, tuple[Any, dict[str, Any]]] = {
        "leaves": (leaves(), {}),
        "pairs": (pairs(), {}),
        "single": ((torch.arange(number) for number in range(COUNT)), {}),
        "images": (images(), {}),
        "pickles": (({"n": number, "object": {1, 2}} for number in range(COUNT)), {}),
        "packed": (pairs(), {"compression": "zstd"}),
        "nested": (({"n": {"a": torch.tensor([[number]])}} for number in range(COUNT)), {}),
        "rows": (rows(), {}),
        "tokens": (tokens(), {"item_loader": TokensLoader(), "chunk_size": None, "chunk_bytes": 200}),
    }
    for name, (samples, options) in everything.items():
        writer = BinaryWriter(str(folder / name), **{"chunk_size": 4} | options)
        for index, sample in enumerate(samples):
            writer[index] = sample
        writer.done()
        writer.merge()


def main(arguments: list[str]) -> int:
    """Write them where the arguments say, by default where the tests look for them."""
    write(Path(arguments[0]) if arguments else FOLDER)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
