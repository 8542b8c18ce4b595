"""LMDB environments: keys and values, read without the library, so that no lock file is made or left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, Unpack

from gdsload.conversion.input_files import SourceFiles, check_file, open_file, stamps
from gdsload.conversion.reasons import in_words
from gdsload.conversion.row_source import runs
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.encoded_values import ENCODINGS, decoded_fields
from gdsload.conversion.sources.lmdb_pages import LmdbPages, LmdbTree
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageForm, ImageSource, put
from gdsload.errors import FormatError, OptionError

__all__ = ["LmdbSource"]

_SUFFIXES = (".mdb", ".lmdb")
_FIRST_PAGES = 64
_LOCKS = ("lock.mdb", "-lock")


class LmdbSource(ImageSource):
    """The keys and values of LMDB environments, in the order of the keys.

    Fields: ``key``, bytes, and ``value``, bytes or what `decode` makes of them; safetensors give a field for each of
    their tensors instead. Values are never unpickled. What is read is the state after the last finished transaction;
    do not write to it meanwhile. Environments of 64-bit machines that store the lowest byte first are read.

    Args:
        path: the folder with `data.mdb`, a file (`.mdb`, `.lmdb`), or a folder of such folders and files.
        decode: what values are: ``"bytes"``, ``"text"`` (UTF-8), ``"npy"``, ``"image"`` (uint8 ``[channels, height,
            width]``, turned as its EXIF data say) or ``"safetensors"``.
        with_key: whether the field ``key`` is made.
        database: the name of the database in the environment; ``""``: the one without a name, whatever names are in
            it. None: that one, if it has values alone.
        **options: `size`, `resize`, `mode` and `keep_encoded`, as all sources of images have them: see `ImageForm`.
            `split` and `follow_links`, as all sources of files have them: see `SourceFiles`.

    Raises:
        OptionError: if an option has no such value.
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
            raise OptionError(f"decode is {decode!r:.200}", remedy=f"Supported are {', '.join(ENCODINGS)}.")
        self.path = path
        self.files = SourceFiles.of(path, options)
        self.decode = decode
        self.with_key = with_key
        self.database = database
        self.look = ImageForm.of(options)

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
        """See `Source.parts`: runs of the pages that have the keys."""
        found: list[Part] = []
        for file in self._files():
            with _opened(file) as pages:
                tree = self._tree(pages, file)
                counts = [pages.count(leaf) for leaf in pages.leaves(tree)]
            # Where values lie is not known before they are read: what the file has is shared out among its keys.
            nbytes = os.path.getsize(file) // max(sum(counts), 1)
            for low, high in runs([count * nbytes for count in counts], target_bytes):
                samples = sum(counts[low:high])
                name = f"{os.path.relpath(file, self.path) if file != self.path else os.path.basename(file)}, "
                found.append(Part(f"{name}pages {low} to {high - 1}", (file, low, high), samples, samples * nbytes))
        if not any(part.samples for part in found):
            raise FormatError("there is not one key", file=self.path)
        return found

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`. Items are made while the file is open: before the next one is asked for."""
        file, low, high = str(part.where[0]), int(part.where[1]), int(part.where[2])
        with _opened(file) as pages:
            for leaf in islice(pages.leaves(self._tree(pages, file)), low, high):
                for node in pages.nodes(leaf):
                    if node.tree is None:
                        where = f"{file}: {node.key!r:.100}"
                        yield Item(f"key {node.key!r:.100}", partial(self._sample, node.key, pages.value(node), where))
                    elif self.database is None:
                        raise _named(node.key, file)

    def first_items(self) -> Iterator[Item]:
        """Those of the first pages: to list all takes longer."""
        for file in self._files():
            yield from self.read(Part("the first keys", (file, 0, _FIRST_PAGES)))

    def _sample(self, key: bytes, content: bytes, where: str) -> dict[str, Any]:
        found: dict[str, Any] = {"key": key} if self.with_key else {}
        look = self.form if self.decode == "image" else self.look
        put(found, decoded_fields("value", content, self.decode, look, where), where)
        return found

    def _tree(self, pages: LmdbPages, file: str) -> LmdbTree:
        found = pages.find(self.database.encode()) if self.database else pages.main
        if found is None:
            raise OptionError(f"there is no database {self.database!r}", file=file)
        if found.has_duplicates:
            raise FormatError(
                "its keys may have several values each (dupsort)", file=file, remedy="Copy it into one that has not."
            )
        return found

    def _files(self) -> list[str]:
        if not os.path.isdir(self.path):
            check_file(self.path)
            return self.files.chosen([self.path])
        found = [file for file in self.files.walk(self.path, _SUFFIXES) if not file.endswith(_LOCKS)]
        if not found:
            raise FormatError(f"there is no file with {' or '.join(_SUFFIXES)}", file=self.path)
        return self.files.chosen(found, self.path)


def _named(key: bytes, file: str) -> OptionError:
    name = key.decode(errors="replace")
    return OptionError(
        f"it holds a database of its own, {name!r:.200}",
        file=file,
        remedy=f"Pass database={name!r:.200} to read that; database='' reads what has no name.",
    )


@contextmanager
def _opened(file: str) -> Iterator[LmdbPages]:
    """The pages of a file; whatever is wrong with it is a FormatError."""
    try:
        with open_file(file) as opened:
            yield LmdbPages(opened.fileno())
    except (OSError, ValueError) as error:
        if isinstance(error, FormatError | OptionError):
            raise
        reason = in_words(error)
        raise FormatError(f"the LMDB file cannot be read: {reason}", file=file) from None
