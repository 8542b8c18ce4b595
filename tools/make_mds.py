"""Write the MDS datasets that the tests read, with the library that owns the format.

    .venv/mosaicml/bin/python tools/make_mds.py [FOLDER]

`benchmarks/mosaicml.txt` has its environment: it wants older packages than gdsload's tests, which therefore read what
is in ``tests/data/mds``. That was written by mosaicml-streaming 0.13.0.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data" / "mds"
SCALARS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
PACKERS = ("gz", "bz2:1", "zstd:7", "br")
COUNT = 7
_TEXTS = ("", "hello", "naïve café", "日本語", "a\0b", "line\nline", "👩‍👩‍👧")


def numbers(count: int = COUNT) -> Iterator[dict[str, Any]]:
    """Samples of every encoding of numbers and texts."""
    for number in range(count):
        values = {name: np.dtype(name).type(number * 17 % 120) for name in SCALARS}
        yield values | {
            "int": number - 3,
            "str_int": 10**number,
            "str_float": number / 3,
            "str_decimal": Decimal(number) / 8,
            "str": _TEXTS[number],
            "bytes": bytes(range(number)),
            "json": {"n": [number, None]},
            "any array": np.arange(2 * number + 2, dtype=SCALARS[number]).reshape(2, number + 1),
            "any shape": np.arange(300 * number + 1, dtype=np.int16),
            "fixed": np.arange(6, dtype=np.float32).reshape(2, 3) + number,
        }


def images() -> Iterator[dict[str, NDArray[np.uint8]]]:
    """Samples of images, ``[height, width, channels]`` or ``[height, width]``."""
    for number in range(3):
        plane = np.add.outer(np.arange(8), np.arange(6 + number)).astype(np.uint8) * 9
        colours = np.stack([plane, plane[::-1], 255 - plane], axis=2)
        yield {"jpeg": colours, "png": colours, "pil": colours, "grey": plane}


def write(folder: Path) -> None:
    """Write the datasets into a folder."""
    from PIL import Image
    from streaming import MDSWriter

    plain = {name: name for name in SCALARS} | {
        "int": "int", "str_int": "str_int", "str_float": "str_float", "str_decimal": "str_decimal", "str": "str",
        "bytes": "bytes", "json": "json", "any array": "ndarray", "any shape": "ndarray:int16",
        "fixed": "ndarray:float32:2,3",
    }  # fmt: skip
    with MDSWriter(out=str(folder / "numbers"), columns=plain, size_limit=4000) as out:
        for sample in numbers():
            out.write(sample)
    for packer in PACKERS:
        columns = {"n": "int32", "str": "str"}
        name = packer.partition(":")[0]
        with MDSWriter(out=str(folder / name), columns=columns, compression=packer, size_limit=250) as out:
            for sample in numbers():
                out.write({"n": sample["int32"], "str": sample["str"]})
    looks = {"jpeg": "jpeg", "png": "png", "pil": "pil", "grey": "pil"}
    with MDSWriter(out=str(folder / "images"), columns=looks) as out:
        for pictures in images():
            out.write({name: Image.fromarray(array) for name, array in pictures.items()})
    with MDSWriter(out=str(folder / "pickles"), columns={"n": "int", "object": "pkl", "more": "list[png]"}) as out:
        out.write({"n": 1, "object": {"a": 1}, "more": []})


def main(arguments: list[str]) -> int:
    """Write them where the arguments say, by default where the tests look for them."""
    write(Path(arguments[0]) if arguments else FOLDER)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
