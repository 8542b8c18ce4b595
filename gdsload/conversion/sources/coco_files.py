"""Datasets in the layout of COCO: images, and files of annotations that name them, with boxes and categories."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import digest_of, stamps
from gdsload.conversion.row_source import filled, row_parts
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.boxes import BOX_WAYS_OUT, BoxedImage, Boxes, BoxForm, batch_of_one, image_of
from gdsload.conversion.sources.coco_annotations import CocoImage, read_annotations
from gdsload.conversion.sources.many_images import mean_bytes, some
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageSource
from gdsload.errors import FormatError

_NAMES = re.compile(r"(^(instances|lvis)_(?P<name>.+)|_annotations\.coco)\.json$", re.IGNORECASE)
_TEST_NAMES = re.compile(r"^image_info_(?P<name>.+)\.json$", re.IGNORECASE)
_FILES = "instances_*.json, lvis_*.json, _annotations.coco.json or image_info_*.json"


class CocoSource(ImageSource):
    """Images and the boxes of objects in them: ``annotations/instances_*.json``, or ``_annotations.coco.json``.

    Also LVIS's ``lvis_*.json``, and test sets without annotations, ``image_info_*.json``, where there is no other file.
    A sample is an image, in the order of the file, also one without objects. Fields: ``image``, uint8 ``[channels,
    height, width]``; ``boxes``, ragged float32 ``[objects, 4]``; ``labels``, ragged int64 ``[objects]``, positions in
    the list of categories in the order of their ids; ``area``, ragged float32, as it stands there; ``iscrowd``, ragged
    bool; ``image_id``, int64. An object without a box has that of its outline, and a note counts them; an image with an
    object that has neither is a bad sample. Outlines, key points and captions are not written. An image is turned as
    its EXIF data say, and its boxes with it, unless its width and height in the file of annotations say that they are
    those of the turned image.

    Args:
        path: the folder.
        boxes: their form: ``"xywh"`` (left, top, width, height, as COCO has them), ``"xyxy"`` (left, top, right,
            bottom), both in pixels of the image as it is made, or ``"cxcywh"``: centre, width and height as shares of
            the image's.
        images: the folder of the images, below `path`. None: looked for under the names that it usually has.
        upright: of images that EXIF data turn, whether boxes are those of the turned image, where width and height do
            not say it. None: such an image is an error.
        **options: `size`, `resize`, `mode` and `keep_encoded`, as all sources of images have them: see `ImageForm`.
            `split` and `follow_links`, as all sources of files have them: see `SourceFiles`.
    """

    kind = "COCO annotations"
    ways_out = BOX_WAYS_OUT
    threads = False

    def __init__(
        self,
        path: str,
        *,
        boxes: Boxes = "xywh",
        images: str | None = None,
        upright: bool | None = None,
        **options: Unpack[ImageFileOptions],
    ) -> None:
        super().__init__(path, **options)
        self.boxes = BoxForm(boxes, self.look)
        self.images, self.upright = images, upright

    @property
    def classes(self) -> list[str]:
        """The names of the categories; an object's label is a position in this list.

        Raises:
            FormatError: if a file is damaged, or files have different ones.
        """
        found = {tuple(read_annotations(file).classes) for file in self._files()}
        if len(found) > 1:
            raise FormatError("the files have different categories", file=self.path, remedy="Pass one split.")
        return list(found.pop())

    def metadata(self) -> dict[str, Any]:
        """The source's part of the dataset's metadata: the names of classes, and the form of boxes."""
        return {"classes": {"labels": self.classes}, "boxes": self.boxes.wanted}

    def notes(self) -> list[str]:
        """Notes for users on the source."""
        return list(dict.fromkeys(note for file in self._files() for note in read_annotations(file).notes))

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`. The images are many: they are known by a checksum of names, lengths and times."""
        files = self._files()
        return {
            "kind": self.kind,
            "files": stamps(files),
            "classes": self.classes,
            "sha256": digest_of(self._image_stamps(files)),
            "boxes": self.boxes.wanted,
            "images": self.images,
            "upright": self.upright,
            **self.form.to_json(),
        }

    def _image_stamps(self, files: list[str]) -> Iterator[object]:
        for file in files:
            folder = self._folder(file)
            for image in read_annotations(file).images:
                path = os.path.join(folder, image.name)
                yield stamps([path]) if os.path.isfile(path) else [path]

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: runs of images."""
        found: list[Part] = []
        nbytes = mean_bytes(self.first_items())
        for file in self._files():
            prefix = f"{os.path.basename(file)}, images"
            count = len(read_annotations(file).images)
            found += row_parts(count, nbytes, target_bytes, prefix=prefix, where=(file,))
        return filled(found, "image", self.path)

    def read(self, part: Part) -> Iterator[Item]:
        file, low, high = str(part.where[0]), int(part.where[1]), int(part.where[2])
        folder = self._folder(file)
        for image in read_annotations(file).images[low:high]:
            yield self._item(image, folder)

    def first_items(self) -> Iterator[Item]:
        """Some at even distances among all of a file."""
        for file in self._files():
            folder = self._folder(file)
            for image in some(read_annotations(file).images):
                yield self._item(image, folder)

    def _item(self, image: CocoImage, folder: str) -> Item:
        return Item(image.name, partial(self._sample, image, folder), 1)

    def _sample(self, image: CocoImage, folder: str) -> dict[str, Any]:
        if image.fault is not None:
            raise FormatError(image.fault, file=os.path.join(folder, image.name))
        file = self.files.inside(folder, image.name)
        found = image_of(file, self.form)
        boxes = self.boxes.made(self._upright_boxes(image, found, file), "xywh", *found.upright)
        ragged: dict[str, NDArray[Any]] = {
            "boxes": boxes,
            "labels": image.labels,
            "area": image.area,
            "iscrowd": image.crowd,
        }
        return batch_of_one({**found.fields, "image_id": np.int64(image.number)}, ragged)

    def _upright_boxes(self, image: CocoImage, found: BoxedImage, file: str) -> NDArray[np.float64]:
        """The boxes of an image as they are in the turned one."""
        sizes = (found.size, found.upright)
        if image.size is not None and image.size not in sizes:
            what = f"{sizes[0][0]} × {sizes[0][1]} pixels, but {image.size[0]} × {image.size[1]} where its boxes are"
            raise FormatError(f"the image has {what}", file=file)
        if found.orientation == 1 or not len(image.boxes):
            return image.boxes
        known = image.size is not None and sizes[0] != sizes[1]
        upright = image.size == sizes[1] if known else self.upright
        if upright is None:
            raise FormatError(
                "its EXIF data turn it, and width and height do not say whether its boxes are those of the turned one",
                file=file,
                remedy="Pass `upright=True` if they are, `upright=False` if they are those of the stored one.",
            )
        return image.boxes if upright else found.turned(image.boxes)

    def _files(self) -> list[str]:
        there = list(self.files.walk(self.path, (".json",)))
        for names in (_NAMES, _TEST_NAMES):
            if found := [file for file in there if names.search(os.path.basename(file))]:
                files = self.files.chosen(found, self.path)
                self._check_shared(files)
                return files
        raise FormatError(
            f"there is no file {_FILES}",
            file=self.path,
            remedy="Pass the folder that has the images' folder and `annotations`, and give the file such a name.",
        )

    def _check_shared(self, files: list[str]) -> None:
        """Refuse files that name the same images: each would be there twice, with a part of its objects."""
        seen: dict[str, str] = {}
        for file in files if len(files) > 1 else ():
            folder = self._folder(file)
            for image in read_annotations(file).images:
                path = os.path.join(folder, image.name)
                if (other := seen.setdefault(path, file)) != file:
                    raise FormatError(
                        f"image {image.name!r:.200} is also in {os.path.basename(other)}",
                        file=file,
                        remedy="Pass `split=` if they are splits, or move one of the files elsewhere.",
                    )

    def _folder(self, file: str) -> str:
        """The folder of a file's images: one that has some of them."""
        images, places = read_annotations(file).images, self._places(file)
        for place in places:
            if not images or any(os.path.isfile(os.path.join(place, image.name)) for image in some(images)):
                return place
        raise FormatError(
            f"its images, such as {images[0].name!r:.200}, are in none of the folders where images usually are",
            file=file,
            remedy="Pass `images='...'`, their folder below the path.",
        )

    def _places(self, file: str) -> list[str]:
        if self.images is not None:
            return [os.path.join(self.path, self.images)]
        beside, base = os.path.split(file)
        match = _NAMES.search(base) or _TEST_NAMES.search(base)
        roots = [beside] if os.path.samefile(beside, self.path) else [os.path.dirname(beside), beside, self.path]
        name = match["name"] if match else None
        names = ["", "images"] if name is None else [name, f"images/{name}", "images", ""]
        return [os.path.join(root, one) for one in names for root in roots]
