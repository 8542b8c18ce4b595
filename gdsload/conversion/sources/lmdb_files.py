"""LMDB environments: keys and values."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Unpack

from gdsload.conversion.input_files import check_file, stamps
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import filled
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.encoded_values import ENCODINGS, decoded_fields
from gdsload.conversion.sources.lmdb_keys import KeyRuns, list_runs, read_run
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageSource, put
from gdsload.conversion.sources.reading_process import read_apart
from gdsload.errors import FormatError, OptionError

__all__ = ["LmdbSource"]

_SUFFIXES = (".mdb", ".lmdb")
AT_ONCE_BYTES = 8 * 2**20
_FEW = 1024
_LOCKS = ("lock.mdb", "-lock")


class LmdbSource(ImageSource):
    """The keys and values of LMDB environments, in the order of the keys.

    Fields: ``key``, bytes, and ``value``, bytes or what `decode` makes of them; safetensors give a field for each of
    their tensors instead. Values are never unpickled. The state after the last finished transaction is read; do not
    write to it meanwhile. No lock is taken, and no file is made. It is read by the library `lmdb`.

    Args:
        path: the folder with `data.mdb`, a file (`.mdb`, `.lmdb`), or a folder of such folders and files.
        decode: what values are: ``"bytes"``, ``"text"`` (UTF-8), ``"npy"``, ``"image"`` (uint8 ``[channels, height,
            width]``, turned as its EXIF data say) or ``"safetensors"``.
        with_key: whether the field ``key`` is made.
        database: the name of the database in the environment; ``""``: the one without a name, whatever names are in
            it. None: that one, if it has values alone.
        **options: `size`, `resize`, `mode` and `keep_encoded`, as all sources of images have them: see `ImageForm`.
            `split` and `follow_links`, as all sources of files have them: see `SourceFiles`.
    """

    kind = "LMDB environment"
    threads = False

    def __init__(
        self,
        path: str,
        *,
        decode: str = "bytes",
        with_key: bool = True,
        database: str | None = None,
        **options: Unpack[ImageFileOptions],
    ) -> None:
        if decode not in ENCODINGS:
            raise OptionError(f"is {decode!r:.200}", option="decode", remedy=f"Supported are {', '.join(ENCODINGS)}.")
        super().__init__(path, **options)
        self.decode = decode
        self.with_key = with_key
        self.database = database

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`."""
        return {
            "kind": self.kind,
            "files": stamps(self._files()),
            "decode": self.decode,
            "with_key": self.with_key,
            "database": self.database,
            **(self.form.to_json() if self.decode == "image" else {}),
        }

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: runs of keys."""
        found: list[Part] = []
        for file in self._files():
            name = os.path.relpath(file, self.path) if file != self.path else os.path.basename(file)
            runs: KeyRuns = self._read(list_runs, file, target_bytes)
            for low, key in zip(range(0, runs.total, runs.keys), runs.begins, strict=True):
                keys = min(runs.keys, runs.total - low)
                where = (file, key.hex(), keys)
                found.append(Part(f"{name}, keys {low} to {low + keys - 1}", where, keys, keys * runs.nbytes))
        return filled(found, "key", self.path)

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        file, key, left = str(part.where[0]), bytes.fromhex(str(part.where[1])), int(part.where[2])
        while left:
            pairs, key, left = self._read(read_run, file, key, left, AT_ONCE_BYTES)
            for name, content in pairs:
                yield Item(f"key {name!r:.100}", partial(self._sample, name, content, f"{file}: {name!r:.100}"))

    def first_items(self) -> Iterator[Item]:
        """Those of the first keys: to list all takes longer."""
        for file in self._files():
            yield from self.read(Part("the first keys", (file, "", _FEW)))

    def _read(self, function: Callable[..., Any], file: str, *arguments: Any) -> Any:
        """The library's environment of a file. Any fault of it is a FormatError."""
        check_file(file)
        with reading("the LMDB file cannot be read", file):
            return read_apart(function, file, self.database, *arguments)

    def _sample(self, key: bytes, content: bytes, where: str) -> dict[str, Any]:
        found: dict[str, Any] = {"key": key} if self.with_key else {}
        look = self.form if self.decode == "image" else self.look
        put(found, decoded_fields("value", content, self.decode, look, where), where)
        return found

    def _files(self) -> list[str]:
        if not os.path.isdir(self.path):
            check_file(self.path)
            return self.files.chosen([self.path])
        found = [file for file in self.files.walk(self.path, _SUFFIXES) if not file.endswith(_LOCKS)]
        if not found:
            raise FormatError(f"there is no file with {' or '.join(_SUFFIXES)}", file=self.path)
        return self.files.chosen(found, self.path)
