"""Datasets in the layout of YOLO: folders `images` and `labels`, with a text file of boxes for each image."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from functools import partial
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.folders import names_in
from gdsload.conversion.input_files import SourceFiles, open_file, stamps
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.boxes import BOX_WAYS_OUT, BoxForm, batch_of_one, image_of, mean_bytes, some
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageForm, ImageSource
from gdsload.conversion.suffixes import PICTURES
from gdsload.errors import FormatError

__all__ = ["YoloSource"]

_IMAGES, _LABELS = "images", "labels"
_YAML = (".yaml", ".yml")
_MAX_TEXT_BYTES = 2**20
_MAX_CLASSES = 100_000


class YoloSource(ImageSource):
    """Images and the boxes of objects in them, one a line: class, centre, width and height as shares of the image's.

    Of ``images/train/1.jpg`` the boxes are in ``labels/train/1.txt``, of ``train/images/1.jpg`` in
    ``train/labels/1.txt``; without such a file it has none. Fields: ``image``, uint8 ``[channels, height, width]``,
    turned as its EXIF data say; ``boxes``, ragged float32 ``[objects, 4]``, those of the turned image; ``labels``,
    ragged int64 ``[objects]``. The names of classes are those of the YAML file at the path. Which images there are, is
    seen in the folders; a YAML file that names lists of them is refused. Outlines and key points are refused.

    Args:
        path: the folder.
        boxes: their form: ``"cxcywh"`` as in the files, or in pixels of the image as it is made ``"xyxy"`` (left, top,
            right, bottom) or ``"xywh"`` (left, top, width, height).
        **options: `size`, `resize`, `mode` and `keep_encoded`, as all sources of images have them: see `ImageForm`.
            `split` and `follow_links`, as all sources of files have them: see `SourceFiles`.

    Raises:
        OptionError: if an option has no such value.
    """

    kind = "YOLO dataset"
    ways_out = BOX_WAYS_OUT
    threads = False

    def __init__(
        self,
        path: str,
        *,
        boxes: str = "cxcywh",
        **options: Unpack[ImageFileOptions],
    ) -> None:
        self.path = path
        self.files = SourceFiles.of(path, options)
        self.look = ImageForm.of(options)
        self.boxes = BoxForm(boxes, self.look)

    @property
    def classes(self) -> list[str]:
        """The names of the classes; an object's label is a position in this list. Empty if no YAML file names them.

        Raises:
            FormatError: if the YAML file is damaged.
        """
        names = self._yaml().get("names", [])
        if isinstance(names, dict):
            if sorted(names) != list(range(len(names))):
                raise FormatError("the classes in its YAML file are not numbered from 0 on", file=self.path)
            names = [names[number] for number in range(len(names))]
        if not isinstance(names, list) or len(names) > _MAX_CLASSES:
            raise FormatError("its YAML file has no list of names", file=self.path)
        return [str(name)[:1000] for name in names]

    def metadata(self) -> dict[str, Any]:
        """What the dataset says of itself: the names of classes, and the form of boxes."""
        names = self.classes
        return {"boxes": self.boxes.wanted} | ({"classes": {"labels": names}} if names else {})

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`. The files are many: they are told by a checksum of their names, lengths and times."""
        digest, images = hashlib.sha256(), self._images()
        for name in images:
            label = os.path.join(self.path, _label_of(name))
            files = [os.path.join(self.path, name), *([label] if os.path.lexists(label) else [])]
            digest.update(json.dumps(stamps(files)).encode())
        return {
            "kind": self.kind,
            "path": self.path,
            "classes": self.classes,
            "files": len(images),
            "sha256": digest.hexdigest(),
            "boxes": self.boxes.wanted,
            **self.form.to_json(),
        }

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`. A part names its images itself: to look for them again would take as long as to read."""
        images = self._images()
        nbytes = mean_bytes(self.first_items())
        step = max(target_bytes // nbytes, 1)
        found = []
        for low in range(0, len(images), step):
            run = images[low : low + step]
            found.append(Part(f"images {low} to {low + len(run) - 1}", tuple(run), len(run), len(run) * nbytes))
        return found

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        classes = len(self.classes)
        for name in part.where:
            yield Item(str(name), partial(self._sample, str(name), classes), 1)

    def first_items(self) -> Iterator[Item]:
        """Some that lie evenly among all."""
        return self.read(Part("some", tuple(some(self._images()))))

    def _sample(self, name: str, classes: int) -> dict[str, Any]:
        image = image_of(os.path.join(self.path, name), self.form)
        boxes, labels = self._objects(_label_of(name), classes)
        return batch_of_one(image.fields, {"boxes": self.boxes.made(boxes, "cxcywh", *image.upright), "labels": labels})

    def _objects(self, name: str, classes: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Boxes, float64 ``[objects, 4]``, and classes of a file, which need not be there."""
        file = os.path.join(self.path, name)
        if not os.path.lexists(file):
            return np.empty((0, 4)), np.empty(0, np.int64)
        lines = [line.split() for line in _text(self.files.inside(self.path, name)).splitlines() if line.strip()]
        for line in lines:
            if len(line) != 5:
                raise FormatError(
                    f"a line has {len(line)} values, not class, centre, width and height: {' '.join(line)!r:.100}",
                    file=file,
                )
        try:
            values = np.array(lines, np.float64).reshape(len(lines), 5)
        except ValueError as error:
            raise FormatError(f"a line is no box: {str(error)[:100]}", file=file) from None
        labels, boxes = values[:, 0], values[:, 1:]
        if not ((boxes >= 0) & (boxes <= 1)).all():
            raise FormatError("a box has a place or size that is not between 0 and 1", file=file)
        if not ((labels == np.floor(labels)) & (labels >= 0) & (labels < (classes or _MAX_CLASSES))).all():
            raise FormatError(f"a class is none of the {classes} that there are: {labels.tolist()!r:.100}", file=file)
        return boxes, labels.astype(np.int64)

    def _images(self) -> list[str]:
        """The names of the images below the path, in order."""
        described = self._yaml()
        for value in (described.get("train"), described.get("val"), described.get("test")):
            if isinstance(value, list) or str(value).endswith(".txt"):
                raise FormatError(
                    "its YAML file names lists of images, which are not read",
                    file=self.path,
                    remedy="Put the images of each split in a folder of its own.",
                )
        names = (os.path.relpath(file, self.path) for file in self.files.walk(self.path, PICTURES, bad=True))
        found = [os.path.join(self.path, name) for name in names if _IMAGES in name.split(os.sep)[:-1]]
        if not found:
            raise FormatError("there is no image in a folder `images`", file=self.path)
        return [os.path.relpath(file, self.path) for file in self.files.chosen(found, self.path)]

    def _yaml(self) -> dict[str, Any]:
        """What the YAML file at the path says; empty if there is none."""
        if not os.path.isdir(self.path):
            raise FormatError(
                "it is no folder",
                file=self.path,
                remedy="Pass the folder that has `images`, `labels` and the YAML file.",
            )
        files = [name for name in sorted(names_in(self.path)) if name.lower().endswith(_YAML)]
        if not files:
            return {}
        names = [name for name in files if os.path.splitext(name)[0] in ("data", "dataset")] or files
        if len(names) > 1:
            raise FormatError(f"it has several YAML files: {', '.join(names)[:200]}", file=self.path)
        file, yaml = self.files.inside(self.path, names[0]), need("yaml", file=self.path)
        try:
            found = yaml.safe_load(_text(file))
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            raise FormatError(f"it is no YAML: {str(error)[:200]}", file=file) from None
        if not isinstance(found, dict):
            raise FormatError("it is no YAML file of a dataset", file=file)
        return found


def _label_of(name: str) -> str:
    """The name of the file that has an image's boxes."""
    pieces = os.path.splitext(name)[0].split(os.sep)
    place = len(pieces) - 1 - pieces[::-1].index(_IMAGES)
    return os.path.join(*pieces[:place], _LABELS, *pieces[place + 1 :]) + ".txt"


def _text(file: str) -> str:
    try:
        with open_file(file) as opened:
            content = opened.read(_MAX_TEXT_BYTES + 1)
        if len(content) > _MAX_TEXT_BYTES:
            raise FormatError(f"it has more than {_MAX_TEXT_BYTES} bytes", file=file)
        return content.decode()
    except (OSError, UnicodeError) as error:
        raise FormatError(f"the file cannot be read: {str(error)[:200]}", file=file) from None
