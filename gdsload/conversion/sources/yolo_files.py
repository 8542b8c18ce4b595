"""Datasets in the layout of YOLO: folders `images` and `labels`, with a text file of boxes for each image."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import digest_of, stamps
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.boxes import BOX_WAYS_OUT, BoxForm, batch_of_one, image_of
from gdsload.conversion.sources.many_images import image_parts, mean_bytes, some
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageSource
from gdsload.conversion.sources.yolo_layout import YoloLayout, text_of
from gdsload.errors import FormatError

__all__ = ["YoloSource"]

_MAX_LABEL = 100_000
_NO_BOXES = "If no label file has boxes, pass `kind='images'`, which takes images alone."


class YoloSource(ImageSource):
    """Images and the boxes of objects in them, one a line: class, centre, width and height as shares of the image's.

    Of ``images/train/1.jpg`` the boxes are in ``labels/train/1.txt``, of ``train/images/1.jpg`` in
    ``train/labels/1.txt``, or in a text beside the image. An image without such a file has no object, and a note counts
    them; that no image has one is an error, as is a label file without an image. Fields: ``image``, uint8 ``[channels,
    height, width]``, turned as its EXIF data say; ``boxes``, ragged float32 ``[objects, 4]``, of the turned image;
    ``labels``, ragged int64 ``[objects]``. The YAML file at the path has the names of classes, and the folders or lists
    of the images of each split; without it `classes.txt` has the names, and the names of folders tell of splits.
    Outlines, key points and turned boxes are refused.

    Args:
        path: the folder, or its folder ``images``, or one in that.
        boxes: their form: ``"cxcywh"`` as in the files, or in pixels of the image as it is made ``"xyxy"`` (left, top,
            right, bottom) or ``"xywh"`` (left, top, width, height).
        **options: `size`, `resize`, `mode` and `keep_encoded`, as all sources of images have them: see `ImageForm`.
            `split` and `follow_links`, as all sources of files have them: see `SourceFiles`.
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
        super().__init__(path, **options)
        self.layout = YoloLayout(path, self.files)
        self.boxes = BoxForm(boxes, self.look)

    @property
    def classes(self) -> list[str]:
        """The names of the classes; an object's label is a position in this list. Empty if no file names them.

        Raises:
            FormatError: if the YAML file is damaged.
        """
        return self.layout.classes()

    def metadata(self) -> dict[str, Any]:
        """The source's part of the dataset's metadata: the names of classes, and the form of boxes."""
        names = self.classes
        return {"boxes": self.boxes.wanted} | ({"classes": {"labels": names}} if names else {})

    def notes(self) -> list[str]:
        """Notes for users on the source."""
        return self.layout.find()[1]

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`. The files are many: they are known by a checksum of names, lengths and times."""
        base, pairs = self.layout.base, self.layout.find()[0]
        files = ([os.path.join(base, name) for name in pair if name] for pair in pairs)
        return {
            "kind": self.kind,
            "path": self.path,
            "classes": self.classes,
            "files": len(pairs),
            "sha256": digest_of(map(stamps, files)),
            "boxes": self.boxes.wanted,
            **self.form.to_json(),
        }

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`."""
        return image_parts(self.layout.find()[0], mean_bytes(self.first_items()), target_bytes)

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        classes = len(self.classes)
        for image, label in zip(part.where[::2], part.where[1::2], strict=True):
            yield Item(str(image), partial(self._sample, str(image), str(label), classes), 1)

    def first_items(self) -> Iterator[Item]:
        """Some at even distances among all."""
        return self.read(Part("some", tuple(chain.from_iterable(some(self.layout.find()[0])))))

    def _sample(self, image: str, label: str, classes: int) -> dict[str, Any]:
        found = image_of(os.path.join(self.layout.base, image), self.form)
        boxes, labels = self._objects(label, classes)
        return batch_of_one(found.fields, {"boxes": self.boxes.made(boxes, "cxcywh", *found.upright), "labels": labels})

    def _objects(self, name: str, classes: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Boxes, float64 ``[objects, 4]``, and classes of a label file, ``""`` for none."""
        if not name:
            return np.empty((0, 4)), np.empty(0, np.int64)
        file, content = os.path.join(self.layout.base, name), text_of(self.files.inside(self.layout.base, name))
        lines = [line.split() for line in content.splitlines() if line.strip()]
        for line in lines:
            if len(line) != 5:
                kind = ", as outlines, key points and turned boxes have them" if len(line) > 6 else ""
                raise FormatError(
                    f"a line has {len(line)} values{kind}, not class, centre, width and height: "
                    f"{' '.join(line)!r:.100}",
                    file=file,
                    remedy=_NO_BOXES,
                )
        try:
            values = np.array(lines, np.float64).reshape(len(lines), 5)
        except ValueError:
            raise FormatError(f"a line is no box: {_no_box(lines)!r:.100}", file=file, remedy=_NO_BOXES) from None
        labels, boxes = values[:, 0], values[:, 1:]
        if not ((boxes >= 0) & (boxes <= 1)).all():
            raise FormatError("a box has a place or size that is not between 0 and 1", file=file)
        if not ((labels == np.floor(labels)) & (labels >= 0) & (labels < (classes or _MAX_LABEL))).all():
            wanted = f"none of the {classes} that there are" if classes else "no whole number from 0 on"
            raise FormatError(f"a class is {wanted}: {labels.tolist()!r:.100}", file=file)
        return boxes, labels.astype(np.int64)


def _no_box(lines: list[list[str]]) -> str:
    """The first line with a word that is no number."""
    for line in lines:
        try:
            np.array(line, np.float64)
        except ValueError:
            return " ".join(line)
    return ""
