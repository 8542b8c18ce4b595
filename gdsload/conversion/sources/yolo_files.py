"""Datasets in the layout of YOLO: folders `images` and `labels`, with a text file of boxes for each image."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NoReturn, Unpack

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.folders import PICTURES, names_in
from gdsload.conversion.input_files import digest_of, open_file, stamps
from gdsload.conversion.reasons import counted_are, reading
from gdsload.conversion.recognise import base_of, has_boxes
from gdsload.conversion.row_source import image_parts, some
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.boxes import BOX_WAYS_OUT, Boxes, BoxForm, batch_of_one, image_of
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageSource
from gdsload.conversion.splits import ALL, split_words
from gdsload.errors import FormatError
from gdsload.system.paths import absolute

_MAX_LABEL = 100_000
_NO_BOXES = "If no label file has boxes, pass `kind='images'`, which takes images alone."
_IMAGES, _LABELS = "images", "labels"
_YAML, _TEXT, _CLASSES = (".yaml", ".yml"), ".txt", "classes.txt"
_SPLITS = ("train", "val", "test")


class YoloSource(ImageSource):
    """Images and the boxes of objects in them, one a line: class, centre, width and height as shares of the image's.

    Of ``images/train/1.jpg`` the boxes are in ``labels/train/1.txt``, of ``train/images/1.jpg`` in
    ``train/labels/1.txt``, or in a text beside the image. An image without such a file has no object, and a note counts
    them, as one does label files without an image; that no image has one is an error. Fields: ``image``, uint8
    ``[channels, height, width]``, turned as its EXIF data say; ``boxes``, ragged float32 ``[objects, 4]``, of the
    turned image; ``labels``, ragged int64 ``[objects]``. The YAML file at the path has the names of classes, and the
    folders or lists of the images of each split; without it `classes.txt` has the names, and the names of folders tell
    of splits. Outlines, key points and turned boxes are refused.

    Args:
        path: the folder, or its folder ``images``, or one in that.
        boxes: their form: ``"cxcywh"`` as in the files, or in pixels of the image as it is made ``"xyxy"`` (left, top,
            right, bottom) or ``"xywh"`` (left, top, width, height).
    """

    kind = "YOLO dataset"
    ways_out = BOX_WAYS_OUT
    threads = False

    def __init__(self, path: str, *, boxes: Boxes = "cxcywh", **options: Unpack[ImageFileOptions]) -> None:
        super().__init__(path, **options)
        self.base = base_of(path)  # the folder that holds `images` and `labels`
        self.boxes = BoxForm(boxes, self.look)

    def metadata(self) -> dict[str, Any]:
        names = self.classes()
        return {"boxes": self.boxes.wanted} | ({"classes": {"labels": names}} if names else {})

    def notes(self) -> list[str]:
        return self.find()[1]

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`. The files are many: they are known by a checksum of names, lengths and times."""
        pairs = self.find()[0]
        files = ([os.path.join(self.base, name) for name in pair if name] for pair in pairs)
        return {
            "kind": self.kind,
            "path": self.path,
            "classes": self.classes(),
            "files": len(pairs),
            "sha256": digest_of(map(stamps, files)),
            "boxes": self.boxes.wanted,
            **self.form.to_json(),
        }

    def parts(self, target_bytes: int) -> list[Part]:
        return image_parts(self.find()[0], target_bytes)

    def read(self, part: Part) -> Iterator[Item]:
        classes = len(self.classes())
        for image, label in zip(part.where[::2], part.where[1::2], strict=True):
            yield Item(str(image), partial(self._sample, str(image), str(label), classes), 1)

    def first_items(self) -> Iterator[Item]:
        """Some at even distances among all."""
        return self.read(Part("some", tuple(chain.from_iterable(some(self.find()[0])))))

    def _sample(self, image: str, label: str, classes: int) -> dict[str, Any]:
        found = image_of(os.path.join(self.base, image), self.form)
        boxes, labels = self._objects(label, classes)
        return batch_of_one(found.fields, {"boxes": self.boxes.made(boxes, "cxcywh", *found.upright), "labels": labels})

    def _objects(self, name: str, classes: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Boxes, float64 ``[objects, 4]``, and classes of a label file, ``""`` for none."""
        if not name:
            return np.empty((0, 4)), np.empty(0, np.int64)
        file, content = os.path.join(self.base, name), text_of(self.files.inside(self.base, name))
        rows = []
        for line in filter(None, map(str.split, content.splitlines())):
            if len(line) != 5:
                kind = ", as outlines, key points and turned boxes have them" if len(line) > 6 else ""
                raise FormatError(
                    f"a line has {len(line)} values{kind}, not class, centre, width, height: {' '.join(line)!r:.100}",
                    file=file,
                    remedy=_NO_BOXES,
                )
            try:
                rows.append([float(word) for word in line])
            except ValueError:
                raise FormatError(f"a line is no box: {' '.join(line)!r:.100}", file=file, remedy=_NO_BOXES) from None
        values = np.array(rows, np.float64).reshape(-1, 5)
        labels, boxes = values[:, 0], values[:, 1:]
        if not ((boxes >= 0) & (boxes <= 1)).all():
            raise FormatError("a box has a place or size that is not between 0 and 1", file=file)
        if not ((labels == np.floor(labels)) & (labels >= 0) & (labels < (classes or _MAX_LABEL))).all():
            wanted = f"none of the {classes} that there are" if classes else "no whole number from 0 on"
            raise FormatError(f"a class is {wanted}: {labels.tolist()!r:.100}", file=file)
        return boxes, labels.astype(np.int64)

    def classes(self) -> list[str]:
        """The names of the classes in the YAML file, else in `classes.txt`; empty if there are none.

        Raises:
            FormatError: if the YAML file is damaged.
        """
        names = self._yaml().get("names") or self._listed_classes()
        if isinstance(names, dict):
            numbered = {int(key): name for key, name in names.items() if key.isdecimal()}
            if sorted(numbered) != list(range(len(names))):
                raise FormatError(
                    "the classes in its YAML file are not numbered from 0 on",
                    file=self.base,
                    remedy="Number them so, as the label files do.",
                )
            names = [numbered[number] for number in range(len(names))]
        if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
            remedy = "Write a list, names: [cat, dog], say."
            raise FormatError("its YAML file has no list of names", file=self.base, remedy=remedy)
        return names

    def _listed_classes(self) -> list[str]:
        """The lines of `classes.txt`, which labelling programs write instead of a YAML file."""
        for folder in ("", _LABELS, _IMAGES):
            name = os.path.join(folder, _CLASSES)
            if os.path.isfile(os.path.join(self.base, name)):
                lines = map(str.strip, text_of(self.files.inside(self.base, name)).splitlines())
                return [line for line in lines if line]
        return []

    def find(self) -> tuple[list[tuple[str, str]], list[str]]:
        """The pairs of an image of the split and its label file, ``""`` for none, by names below `base`; and notes.

        Raises:
            FormatError: if there is no image, or none has a label file.
            OptionError: if there are several splits and none was asked for, or not the one that was.
        """
        every, texts = self._walked()
        named = {} if self.files.split == ALL else self._named(every, texts)
        inside = [name for name in every if _IMAGES in name.split(os.sep)[:-1]] or every
        split = self.files.split
        # A folder may be called `valid`, which the YAML file calls `val`.
        if split is not None and split not in named and any(split in split_words(name) for name in inside):
            named = {}
        found = self._chosen(named) if named else self._of_split(inside)
        if not found:
            raise FormatError("there is no image", file=self.path)
        labels: dict[str, str] = {}
        for text in texts:
            labels.setdefault(os.path.splitext(text)[0], text)
        pairs = [(name, next((labels[stem] for stem in _stems(name) if stem in labels), "")) for name in found]
        bare = [name for name, label in pairs if not label]
        if len(bare) == len(found):
            self._refuse_bare(bare)
        are = counted_are(len(bare), "image")
        notes = [f"{are} without a label file: taken for images of no object"] if bare else []
        others = {stem for name in set(every).difference(found) for stem in _stems(name)}
        unused = sorted(text for text in set(texts).difference(label for _, label in pairs))
        unused = [text for text in unused if os.path.splitext(text)[0] not in others]
        if unused := [text for text in unused if has_boxes(os.path.join(self.base, text))]:
            are = counted_are(len(unused), "label file")
            notes.append(f"{are} left out, of no image, or of one that has another: {unused[0]!r} first")
        if more := len(every) - len(set().union(*named.values()) if named else inside):
            where = "no split that the YAML file names" if named else f"no folder {_IMAGES!r}"
            notes.append(f"{counted_are(more, 'image')} in {where}, and left out")
        return pairs, notes

    def _walked(self) -> tuple[list[str], list[str]]:
        whole = absolute(self.path)
        if not os.path.isdir(whole):
            remedy = "Pass the folder that has `images`, `labels` and the YAML file."
            raise FormatError("it is no folder", file=self.path, remedy=remedy)
        folders: dict[str, tuple[str, ...]] = {whole: (*PICTURES, _TEXT)}
        if whole != self.base:
            below = os.path.relpath(whole, os.path.join(self.base, _IMAGES))
            labels = os.path.normpath(os.path.join(self.base, _LABELS, below))
            folders |= {labels: (_TEXT,)} if os.path.isdir(labels) else {}
        start = len(os.path.join(self.base, ""))
        names = [name[start:] for at, suffixes in folders.items() for name in self.files.walk(at, suffixes, bad=True)]
        texts = [name for name in names if name.lower().endswith(_TEXT)]
        return [name for name in names if not name.lower().endswith(_TEXT)], texts

    def _of_split(self, images: list[str]) -> list[str]:
        """Those of some images that are of the split, as the names of folders and files tell it."""
        whole = [os.path.join(self.base, name) for name in images]
        start = len(os.path.join(self.base, ""))
        return [name[start:] for name in self.files.chosen(whole, absolute(self.path))] if whole else []

    def _chosen(self, named: dict[str, list[str]]) -> list[str]:
        """The images of the split, of those that the YAML file names; splits of the same images are one."""
        if self.files.split is None and len({frozenset(names) for names in named.values()}) == 1:
            return next(iter(named.values()))
        folders = self.files.chosen([os.path.join(self.path, split) for split in named], self.path)
        return list(dict.fromkeys(name for folder in folders for name in named[os.path.basename(folder)]))

    def _refuse_bare(self, images: list[str]) -> NoReturn:
        raise FormatError(
            f"{counted_are(len(images), 'image')} there, and no label file fits: {images[0]!r} has none at "
            f"{' or '.join(repr(stem + _TEXT) for stem in _stems(images[0]))}",
            file=self.base,
            remedy="Put label files there, an empty one for an image without objects; or pass `kind='images'`, which "
            "takes images alone.",
        )

    def _named(self, images: list[str], texts: list[str]) -> dict[str, list[str]]:
        """The images of each split that the YAML file names, as far as they are there."""
        described, known = self._yaml(), set(images)
        found: dict[str, list[str]] = {}
        missing = ""
        for split in _SPLITS:
            entries = described.get(split) or []
            entries = [entries] if isinstance(entries, str) else entries
            if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
                raise FormatError(
                    f"{split!r} in its YAML file is no folder or file, and no list of them", file=self.base
                )
            names: dict[str, None] = {}
            for entry in entries:
                places = list(self._meant(entry, described.get("path")))
                if entry.lower().endswith(_TEXT):
                    lists = [place for place in places if place in texts]
                    missing = missing or ("" if lists else entry)
                    names |= dict.fromkeys(self._lines(lists[0], known) if lists else ())
                else:
                    inside = ([name for name in images if _is_in(name, place)] for place in places)
                    names |= dict.fromkeys(next(filter(None, inside), []))
            if names:
                found[split] = list(names)
        if missing and not found:
            raise FormatError(f"its YAML file names the list {missing!r}, which is not there", file=self.base)
        return found

    def _meant(self, entry: str, path: Any) -> Iterator[str]:
        """The names below the base that a path in the YAML file may stand for; many files have one of elsewhere."""
        entry = entry.replace("\\", "/")
        plain = entry
        while plain.startswith("../"):  # as Roboflow writes it
            plain = plain[3:]
        for one in (entry, plain):
            for folder in (path if isinstance(path, str) else "", ""):
                if (name := _below(self.base, os.path.join(folder, one))) is not None:
                    yield name

    def _lines(self, file: str, images: set[str]) -> Iterator[str]:
        lines = text_of(self.files.inside(self.base, file)).splitlines()
        for number, line in enumerate(lines, 1):
            entry = line.strip().replace("\\", "/")
            places = (_below(self.base, os.path.join(folder, entry)) for folder in (os.path.dirname(file), ""))
            if entry and (name := next((one for one in places if one in images), None)):
                yield name
            elif entry:
                raise FormatError(
                    f"line {number} names {entry!r:.200}, which is no image of the folder",
                    file=os.path.join(self.base, file),
                    remedy="Put the image there, or remove the line; names are those from the list's folder on.",
                )

    def _yaml(self) -> dict[str, Any]:
        """The content of the YAML file, all as texts so that a class `no` is no truth value; empty without a file."""
        files = [name for name in sorted(names_in(self.base)) if name.lower().endswith(_YAML)]
        if not files:
            return {}
        names = [name for name in files if os.path.splitext(name)[0] in ("data", "dataset")] or files
        if len(names) > 1:
            raise FormatError(f"it has several YAML files: {', '.join(names)[:200]}", file=self.base)
        file = self.files.inside(self.base, names[0])
        return _loaded(file, str(stamps([file])))


@lru_cache(maxsize=1)
def _loaded(file: str, _stamp: str) -> dict[str, Any]:
    """The content of a YAML file, read once for all parts and labels: where it has many names, it takes long."""
    yaml = need("yaml", file=file)
    with reading("it is no YAML", file, yaml.YAMLError, RecursionError, ValueError):
        found = yaml.load(text_of(file), Loader=yaml.BaseLoader)
    if not isinstance(found, dict):
        raise FormatError("it is no YAML file of a dataset", file=file)
    return found


def text_of(file: str) -> str:
    """The content of a text file.

    Raises:
        FormatError: if it cannot be read, or is no UTF-8.
    """
    with reading("the file cannot be read", file, OSError, UnicodeError), open_file(file) as opened:
        return opened.read().decode("utf-8-sig")


def _stems(image: str) -> list[str]:
    """The possible paths of an image's label file, without ending: in `labels` for one in `images`, or beside it."""
    stem = os.path.splitext(image)[0]
    pieces = stem.split(os.sep)
    if _IMAGES not in pieces[:-1]:
        return [stem]
    place = len(pieces) - 2 - pieces[-2::-1].index(_IMAGES)
    return [os.path.join(*pieces[:place], _LABELS, *pieces[place + 1 :]), stem]


def _below(base: str, name: str) -> str | None:
    """A name from a folder on; None if it leads out of it."""
    found = os.path.normpath(os.path.join(base, name))
    return found[len(base) :].lstrip(os.sep) or "." if _is_in(found, base) or found == base else None


def _is_in(name: str, folder: str) -> bool:
    return folder == "." or name.startswith(os.path.join(folder, ""))
