"""Folders of images, one for each class, as torchvision's `ImageFolder` takes them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Unpack

from gdsload.conversion.input_files import FileOptions, SourceFiles, open_file, stamps
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.pictures import SUFFIXES, ImageForm, decode_image
from gdsload.conversion.splits import split_words
from gdsload.errors import FormatError

__all__ = ["ImageFolderSource"]

_LOOKED_AT = 16
_USUAL_BYTES = 3 * 224 * 224


class ImageFolderSource:
    """Images in one folder for each class.

    Fields: ``image``, uint8 ``[channels, height, width]``, turned as its EXIF data says, and ``label``, the number of
    the image's class. As in torchvision, classes are numbered in the order of their names as texts (``"10"`` before
    ``"2"``); images of a class come in the order in which people count. Hidden folders are passed over.

    Folders of splits (``train/``, ``val/``) are no classes; the class folders are in those of the `split` then.

    Args:
        path: the folder of class folders.
        size: height and width of the images; None: as they are.
        resize: ``"crop"`` (the middle of the scaled image, the default), ``"squash"`` or ``"none"``: an image of
            another size is an error then.
        mode: the channels: ``"RGB"``, ``"RGBA"``, ``"L"``, or ``"keep"`` (as they are, palettes as indices).
        **files: `split` and `follow_links`, as all sources of files have them: see `SourceFiles`.

    Raises:
        OptionError: if an option has no such value.
    """

    kind = "image folder"
    threads = False

    def __init__(
        self,
        path: str,
        size: int | None = None,
        resize: str | None = None,
        mode: str = "RGB",
        **files: Unpack[FileOptions],
    ) -> None:
        self.path = path
        self.files = SourceFiles(path, **files)
        self.look = ImageForm(mode, size, resize, upright=True)

    @property
    def classes(self) -> list[str]:
        """The names of the classes; an image's label is a position in this list.

        Raises:
            FormatError: if there is no folder of a class.
        """
        return sorted(self._folders())

    def _folders(self) -> dict[str, list[str]]:
        """The folders of each class: one in each folder of the split."""
        splits = self._split_folders()
        found: dict[str, list[str]] = {}
        for root in [self.path] if splits is None else splits:
            for folder in self._folders_in(root):
                found.setdefault(os.path.basename(folder), []).append(folder)
        if not found:
            raise FormatError(
                "there is no folder in it",
                file=self.path,
                remedy="Put the images of each class in a folder of its own.",
            )
        return found

    def _split_folders(self) -> list[str] | None:
        """The folders of the split, if splits have folders here."""
        folders = self._folders_in(self.path)
        if sum(bool(split_words(os.path.basename(folder))) for folder in folders) < 2:
            return None
        # What has no image in it, as `annotations` of COCO, is not asked.
        return self.files.split_folders([one for one in folders if any(self.files.walk(one, SUFFIXES))])

    def _folders_in(self, folder: str) -> list[str]:
        try:
            with os.scandir(folder) as entries:
                found = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
        except OSError as error:
            raise FormatError(f"the folder cannot be read: {error.strerror}", file=folder) from None
        for entry in found:
            if entry.is_symlink():
                self.files.check_link(entry.path)
        return [entry.path for entry in found]

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`. The files are many: they are told by a checksum of their names, lengths and times."""
        digest = hashlib.sha256()
        files = self._files()
        for _, name in files:
            digest.update(json.dumps(stamps([os.path.join(self.path, name)])).encode())
        return {
            "kind": self.kind,
            "path": self.path,
            "classes": self.classes,
            "files": len(files),
            "sha256": digest.hexdigest(),
            "size": self.look.size,
            "resize": self.look.resize,
            "mode": self.look.mode,
        }

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`. A part names its files itself: to look for them again would take as long as to read."""
        files = self._files()
        nbytes = self._image_bytes(files)
        step = max(target_bytes // nbytes, 1)
        found = []
        for low in range(0, len(files), step):
            run = files[low : low + step]
            where = tuple(piece for pair in run for piece in pair)
            found.append(Part(f"images {low} to {low + len(run) - 1}", where, len(run), len(run) * nbytes))
        return found

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        for label, name in zip(part.where[::2], part.where[1::2], strict=True):
            yield Item(str(name), partial(_sample, os.path.join(self.path, str(name)), int(label), self.look))

    def _image_bytes(self, files: list[tuple[int, str]]) -> int:
        """Bytes of an image, decoded: the mean of some that lie evenly among the files."""
        found = []
        for _, name in files[:: -(-len(files) // _LOOKED_AT) or 1]:
            with suppress(FormatError):  # said when it is its turn
                found.append(_sample(os.path.join(self.path, name), 0, self.look)["image"].nbytes)
        return max(sum(found) // len(found), 1) if found else _USUAL_BYTES

    def _files(self) -> list[tuple[int, str]]:
        """Label and name below the folder of each image, in order."""
        folders = self._folders()
        splits = self._split_folders() is None  # else they are told apart already
        return [
            (label, os.path.relpath(file, self.path))
            for label, name in enumerate(sorted(folders))
            for folder in folders[name]
            for file in self.files.find(SUFFIXES, folder=folder, splits=splits)
        ]


def _sample(file: str, label: int, look: ImageForm) -> dict[str, Any]:
    try:
        with open_file(file) as opened:
            return {"image": decode_image(opened, look, file), "label": label}
    except OSError as error:
        raise FormatError(f"the image cannot be read: {error.strerror}", file=file) from None
