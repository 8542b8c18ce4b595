"""IDX files, in which MNIST and its like are published: arrays after a header of their sizes."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import FileOptions, FileSource, open_file
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import array_items, array_parts, filled
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.streams import DAMAGED, exactly, unpacked_by_magic
from gdsload.conversion.splits import split_words
from gdsload.errors import FormatError, OptionError

_TYPES = {
    8: ("ubyte", "u1"), 9: ("byte", "i1"), 11: ("short", ">i2"), 12: ("int", ">i4"), 13: ("float", ">f4"),
    14: ("double", ">f8"),
}  # fmt: skip
SUFFIXES = tuple(f"idx{dims}-{name}{gz}" for dims in range(1, 6) for name, _ in _TYPES.values() for gz in ("", ".gz"))
"""How names of such files end."""

_ENDING = re.compile(r"[-._]?idx\d-[a-z]+(\.gz)?$", re.IGNORECASE)
_FIELDS = {"images": "image", "labels": "label"}


class IdxSource(FileSource):
    """Arrays of IDX files, as MNIST, Fashion-MNIST, EMNIST and QMNIST are published.

    Files that are called alike up to the last word are the fields of one dataset: of ``train-images-idx3-ubyte`` and
    ``train-labels-idx1-ubyte`` these are ``image``, uint8 ``[1, height, width]``, and ``label``. Other words are names
    of fields themselves, whose first dimension counts the samples. ``t10k`` is a split, as ``test`` is.

    Args:
        path: a file, also packed by gzip, or a folder of them. A file that is there packed and unpacked is taken once.
        prefix: how the names of the files begin, if there are several datasets: ``"emnist-letters"``.
    """

    kind = "IDX files"
    threads = True
    decisive = ("prefix",)

    def __init__(self, path: str, *, prefix: str = "", **files: Unpack[FileOptions]) -> None:
        super().__init__(path, **files)
        self.prefix = prefix

    def all_files(self) -> list[str]:
        return [file for fields in self._groups().values() for file in fields.values()]

    def parts(self, target_bytes: int) -> list[Part]:
        found: list[Part] = []
        for group, files in self._groups().items():
            arrays = _arrays(files)
            prefix = f"{group.rpartition('/')[2]} rows".lstrip()
            found += array_parts(arrays, target_bytes, self.path, prefix=prefix, where=(group,))
        return filled(found, "row", self.path)

    def read(self, part: Part) -> Iterator[Item]:
        group, low, high = str(part.where[0]), int(part.where[1]), int(part.where[2])
        return array_items(_arrays(self._groups()[group]), low, high)

    def _groups(self) -> dict[str, dict[str, str]]:
        """The files of each field, by what comes before the last word of their names."""
        found: dict[str, dict[str, str]] = {}
        for file in self.files.find(("",) if not os.path.isdir(self.path) else SUFFIXES):
            name = os.path.basename(file)
            if not name.startswith(self.prefix) or (
                name.lower().endswith(".gz") and os.path.exists(file[: -len(".gz")])
            ):
                continue
            group, _, word = _ENDING.sub("", name).replace(".", "-").rpartition("-")
            fields = found.setdefault(os.path.join(os.path.dirname(file), group), {})
            if fields.setdefault(_FIELDS.get(word, word), file) != file:
                raise FormatError(f"two files are called alike up to their types: {name!r}", file=file)
        if not found:
            raise OptionError(f"no file's name begins with {self.prefix!r}", file=self.path)
        _check_alike(found, self.path)
        return found


def _check_alike(groups: dict[str, dict[str, str]], path: str) -> None:
    """Refuse several datasets in one folder: other names than those of splits, or other fields."""
    names = {tuple(word for word in group.split("-") if not split_words(os.path.basename(word))) for group in groups}
    fields = {tuple(sorted(files)) for files in groups.values()}
    if len(names) > 1 or len(fields) > 1:
        listed = ", ".join(sorted(os.path.relpath(group, path) for group in groups))
        remedy = "Pass the folder of one, or `prefix=`: how its names begin."
        raise OptionError(f"it holds several datasets: {listed[:500]}", file=path, remedy=remedy)


def _arrays(files: dict[str, str]) -> dict[str, NDArray[Any]]:
    arrays = {name: _array(file) for name, file in files.items()}
    if "image" in arrays and arrays["image"].ndim == 3:
        arrays["image"] = arrays["image"][:, None]
    return arrays


def _array(file: str) -> NDArray[Any]:
    """The array of a file, mapped if it is not packed."""
    with reading("the IDX file cannot be read", file, *DAMAGED, ValueError), open_file(file) as raw:
        stream, nbytes = unpacked_by_magic(raw)
        magic = exactly(stream, 4)
        if magic[:2] != b"\0\0" or magic[2] not in _TYPES or not 1 <= magic[3] <= 8:
            raise ValueError("it does not begin as an IDX file")
        shape = tuple(np.frombuffer(exactly(stream, 4 * magic[3]), ">u4").tolist())
        dtype, header = np.dtype(_TYPES[magic[2]][1]), 4 + 4 * magic[3]
        wanted = math.prod(shape) * dtype.itemsize
        if nbytes >= 0 and wanted != nbytes - header:
            raise ValueError(f"its header promises {wanted} bytes, but {nbytes - header} are there")
        if nbytes >= 0 and wanted:
            return np.memmap(file, dtype, "r", header, shape)
        content = exactly(stream, wanted)
        if stream.read(1):  # to the checksum at the very end
            raise ValueError(f"it has more than the {wanted} bytes that its header promises")
        return np.frombuffer(content, dtype).reshape(shape)
