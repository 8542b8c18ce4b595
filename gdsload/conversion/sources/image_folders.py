"""Folders of images, one for each class, as torchvision's `ImageFolder` takes them; or one folder of images alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any, Unpack

from gdsload.conversion.folders import PICTURES
from gdsload.conversion.input_files import digest_of, open_file, stamps
from gdsload.conversion.reasons import counted_are, reading
from gdsload.conversion.row_source import image_parts, some
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageForm, ImageSource, put
from gdsload.conversion.splits import ALL, level_splits, split_words
from gdsload.errors import FormatError

_NO_CLASS = -1
_PICTURE_FOLDERS = ("image", "images", "img", "imgs")


class ImageFolderSource(ImageSource):
    """Images in one folder for each class.

    Fields: ``image``, uint8 ``[channels, height, width]``, turned as its EXIF data says, and ``label``, the number of
    the image's class. As in torchvision, classes are numbered in the order of their names as texts (``"10"`` before
    ``"2"``); images of a class come in the order in which people count. A class folder
    without images is a class without samples, and noted.

    A folder that holds images, but no folders of them, has no classes: then there is no ``label``.

    Folders of splits (``train/``, ``val/``) are no classes; the class folders are in those of the `split` then, with
    ``"all"`` in all of them.

    Args:
        path: the folder of class folders, or of images.
        with_key: add a text field ``key``, the path of the image's file from that folder.
    """

    kind = "image folder"
    threads = False

    def __init__(self, path: str, *, with_key: bool = False, **options: Unpack[ImageFileOptions]) -> None:
        super().__init__(path, **options)
        self.with_key = with_key
        self._listed: list[tuple[int, str]] | None = None

    @property
    def classes(self) -> list[str]:
        """The names of the classes; an image's label is a position in this list. None if images are in no folders.

        Raises:
            FormatError: if there are neither folders nor images.
        """
        return sorted(self._folders())

    def metadata(self) -> dict[str, Any]:
        classes = self.classes
        return ({"classes": {"label": classes}} if classes else {}) | ({"key": "key"} if self.with_key else {})

    def notes(self) -> list[str]:
        """Notes for users on folders that may be no classes, and on files that are left out."""
        folders = self._folders()
        filled = {name for name, places in folders.items() if any(map(self._has_image, places))}
        empty = [name for name in folders if name not in filled]
        found = [f"class {name!r} has no image that can be read. It keeps its number." for name in empty]
        if len(filled) > 1 and (named := sorted(name for name in filled if name.lower() in _PICTURE_FOLDERS)):
            found.append(
                f"{named[0]!r} is taken for a class. Pictures and their masks are converted with a CSV table that "
                "has the paths of a pair in each row, `kind='csv'`."
            )
        if others := self._left_out(bool(folders)):
            endings = ", ".join(sorted({os.path.splitext(name)[1].lower() for name in others}))
            found.append(
                f"{counted_are(len(others), 'file')} left out, {others[0]!r} first ({endings}). "
                "A CSV table that names files in a column is converted with these, `kind='csv'`."
            )
        return found

    def _left_out(self, classes: bool) -> list[str]:
        """The files that are not read: other ones than pictures, and pictures that are in no folder of a class."""
        found = []
        for root in self._roots(self._split_folders()):
            for entry in self.files.entries(root):
                is_in_root = entry.path == os.path.join(root, entry.name)
                if is_in_root == classes or not entry.name.lower().endswith(PICTURES):
                    found.append(os.path.relpath(entry.path, self.path))
        return found

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`. The files are many: they are known by a checksum of names, lengths and times."""
        files = self._files()
        return {
            "kind": self.kind,
            "path": self.path,
            "classes": self.classes,
            "files": len(files),
            "sha256": digest_of(stamps([os.path.join(self.path, name)]) for _, name in files),
            "with_key": self.with_key,
            **self.form.to_json(),
        }

    def parts(self, target_bytes: int) -> list[Part]:
        return image_parts(self._files(), target_bytes)

    def read(self, part: Part) -> Iterator[Item]:
        for label, name in zip(part.where[::2], part.where[1::2], strict=True):
            yield self._item(int(label), str(name))

    def _item(self, label: int, name: str) -> Item:
        key = name if self.with_key else None
        return Item(name, partial(_sample, os.path.join(self.path, name), label, self.form, key))

    def first_items(self) -> Iterator[Item]:
        """Some at even distances among all: the first may all be of one class."""
        files = self._files() if self._listed is None else self._listed
        for label, name in some(files):
            yield self._item(label, name)

    def _folders(self) -> dict[str, list[str]]:
        """The folders of each class: one in each folder of the split; none if the images are in no folders."""
        splits = self._split_folders()
        found: dict[str, list[str]] = {}
        for root in self._roots(splits):
            for folder in self.files.folders(root):
                found.setdefault(os.path.basename(folder), []).append(folder)
        if any(self._has_image(folder) for folders in found.values() for folder in folders):
            return found
        if any(self._has_image(root, below=False) for root in self._roots(splits)):
            return {}
        if not found:
            remedy = "Put the images of each class in its own folder, or all into this one."
            raise FormatError("there is no folder in it, and no image", file=self.path, remedy=remedy)
        raise FormatError(f"there is no file with {' or '.join(PICTURES)}", file=self.path)

    def _roots(self, splits: list[str] | None) -> list[str]:
        return [self.path] if splits is None else splits

    def _has_image(self, folder: str, *, below: bool = True) -> bool:
        return next(self._images_in(folder, below=below), None) is not None

    def _images_in(self, folder: str, *, below: bool = True) -> Iterator[str]:
        return self.files.walk(folder, PICTURES, below=below, bad=True)

    def _split_folders(self) -> list[str] | None:
        """The folders of the split, if splits have folders here."""
        folders = self.files.folders(self.path)
        if sum(bool(split_words(os.path.basename(folder))) for folder in folders) < 2:
            return None
        # Folders without an image, such as `annotations` of COCO, do not count.
        folders = [one for one in folders if self._has_image(one)]
        if self.files.split != ALL:
            return self.files.split_folders(folders)
        # All splits together: the class folders are in these, unless one is a class itself.
        splits = level_splits([os.path.basename(folder) for folder in folders])
        classes = splits is None or None in splits or any(self._has_image(one, below=False) for one in folders)
        return None if classes else folders

    def _files(self) -> list[tuple[int, str]]:
        """Label and name below the folder of each image, in order."""
        folders, splits = self._folders(), self._split_folders()
        if folders:
            places = [(label, folder, True) for label, name in enumerate(sorted(folders)) for folder in folders[name]]
        else:
            places = [(_NO_CLASS, root, False) for root in self._roots(splits)]
        found = []
        for label, folder, below in places:
            files = list(self._images_in(folder, below=below))
            if files and splits is None:  # else they are known already
                files = self.files.chosen(files, folder)
            found += [(label, os.path.relpath(file, self.path)) for file in files]
        self._listed = found
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_listed": None}


def _sample(file: str, label: int, look: ImageForm, key: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {} if key is None else {"key": key}
    with reading("the image cannot be read", file, OSError), open_file(file) as opened:
        put(found, look.fields("image", opened, file), file)
    return found if label == _NO_CLASS else {**found, "label": label}
