"""NumPy arrays: `.npy` files, `.npz` archives, and folders of them. Nothing in them is ever unpickled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import FileOptions, SourceFiles, check_file, stamps
from gdsload.conversion.row_source import check_fields
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.conversion.sources.array_rows import array_items, array_parts
from gdsload.errors import FormatError, OptionError

__all__ = ["ArraySource"]


class ArraySource(FieldChoice):
    """Arrays whose first dimension counts the samples.

    A `.npy` file is one field, called after the file, and the files of a folder are the fields of one dataset. An
    `.npz` archive has a field for each of its arrays.

    Args:
        path: a `.npy` file, a folder of such files, or an `.npz` file.
        **files: `split` and `follow_links`, as all sources of files have them: see `SourceFiles`.
    """

    kind = "NumPy arrays"
    threads = True

    def __init__(self, path: str, **files: Unpack[FileOptions]) -> None:
        self.path = path
        self._archive = path.endswith(".npz")
        self._files = SourceFiles(path, **files).find((".npy",), below=False)

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`."""
        return {"kind": self.kind, "files": stamps(self._files)}

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`."""
        return array_parts(self._open(), target_bytes, self.path)

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        low, high = (int(edge) for edge in part.where)
        return array_items(self._open(), low, high)

    def _open(self) -> dict[str, NDArray[Any]]:
        for file in self._files:
            check_file(file)
        try:
            if self._archive:
                with np.load(self.path, allow_pickle=False) as archive:
                    return {name: archive[name] for name in check_fields(self.fields, archive.files, self.path)}
            files = {os.path.basename(file).removesuffix(".npy"): file for file in self._files}
            names = check_fields(self.fields, files, self.path)
            return {name: np.load(files[name], mmap_mode="r", allow_pickle=False) for name in names}
        except (OSError, ValueError, EOFError) as error:
            if isinstance(error, OptionError):
                raise
            raise FormatError(
                f"the arrays cannot be read: {error}", file=self.path,
                remedy="Arrays of objects are pickles, which are never loaded: save numbers.",
            ) from None  # fmt: skip
