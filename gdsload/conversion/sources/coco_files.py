"""Datasets in the layout of COCO: images, and files of annotations that name them, with boxes and categories."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import SourceFiles, open_file, stamps
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.boxes import BOX_WAYS_OUT, BoxedImage, BoxForm, batch_of_one, image_of, mean_bytes, some
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageForm, ImageSource
from gdsload.errors import FormatError, OptionError

__all__ = ["CocoSource"]

_NAMES = re.compile(r"(^instances_(?P<name>.+)|_annotations\.coco)\.json$", re.IGNORECASE)
_LARGEST = 2**31 - 1


class CocoSource(ImageSource):
    """Images and the boxes of objects in them: ``annotations/instances_*.json``, or ``_annotations.coco.json``.

    A sample is an image, in the order of the file, also one without objects. Fields: ``image``, uint8 ``[channels,
    height, width]``; ``boxes``, ragged float32 ``[objects, 4]``; ``labels``, ragged int64 ``[objects]``, positions in
    the list of categories in the order of their ids; ``area``, ragged float32, as it stands there; ``iscrowd``, ragged
    bool; ``image_id``, int64. Outlines, key points and captions are not read. An image is turned as its EXIF data say,
    and its boxes with it, unless its width and height in the file of annotations say that they are those of the turned
    image.

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

    Raises:
        OptionError: if an option has no such value.
    """

    kind = "COCO annotations"
    ways_out = BOX_WAYS_OUT
    threads = False

    def __init__(
        self,
        path: str,
        *,
        boxes: str = "xywh",
        images: str | None = None,
        upright: bool | None = None,
        **options: Unpack[ImageFileOptions],
    ) -> None:
        self.path = path
        self.files = SourceFiles.of(path, options)
        self.look = ImageForm.of(options)
        self.boxes = BoxForm(boxes, self.look)
        self.images, self.upright = images, upright
        if upright not in (None, True, False):
            raise OptionError(f"upright is {upright!r:.200}", remedy="Supported are true and false.")

    @property
    def classes(self) -> list[str]:
        """The names of the categories; an object's label is a position in this list.

        Raises:
            FormatError: if a file is damaged, or files have different ones.
        """
        found = {tuple(_annotations(file).classes) for file in self._files()}
        if len(found) > 1:
            raise FormatError("the files have different categories", file=self.path, remedy="Pass one split.")
        return list(found.pop())

    def metadata(self) -> dict[str, Any]:
        """What the dataset says of itself: the names of classes, and the form of boxes."""
        return {"classes": {"labels": self.classes}, "boxes": self.boxes.wanted}

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`. The images are many: they are told by a checksum of names, lengths and times."""
        digest, files = hashlib.sha256(), self._files()
        for file in files:
            folder = self._folder(file)
            for image in _annotations(file).images:
                path = os.path.join(folder, image.name)
                is_there = not _leads_out(image.name) and os.path.isfile(path)
                digest.update(json.dumps(stamps([path]) if is_there else [path]).encode())
        return {
            "kind": self.kind,
            "files": stamps(files),
            "classes": self.classes,
            "sha256": digest.hexdigest(),
            "boxes": self.boxes.wanted,
            "images": self.images,
            "upright": self.upright,
            **self.form.to_json(),
        }

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: runs of images."""
        found: list[Part] = []
        nbytes = mean_bytes(self.first_items())
        step = max(target_bytes // nbytes, 1)
        for file in self._files():
            count, name = len(_annotations(file).images), os.path.basename(file)
            for low in range(0, count, step):
                high = min(low + step, count)
                part = f"{name}, images {low} to {high - 1}"
                found.append(Part(part, (file, low, high), high - low, (high - low) * nbytes))
        if not found:
            raise FormatError("there is not one image", file=self.path)
        return found

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        file, low, high = str(part.where[0]), int(part.where[1]), int(part.where[2])
        folder = self._folder(file)
        for image in _annotations(file).images[low:high]:
            yield self._item(image, folder)

    def first_items(self) -> Iterator[Item]:
        """Some that lie evenly among all of a file."""
        for file in self._files():
            folder = self._folder(file)
            for image in some(_annotations(file).images):
                yield self._item(image, folder)

    def _item(self, image: _Image, folder: str) -> Item:
        return Item(image.name, partial(self._sample, image, folder), 1)

    def _sample(self, image: _Image, folder: str) -> dict[str, Any]:
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

    def _upright_boxes(self, image: _Image, found: BoxedImage, file: str) -> NDArray[np.float64]:
        """The boxes of an image as they are in the turned one."""
        sizes = (found.size, found.upright)
        if image.size is not None and image.size not in sizes:
            what = f"{sizes[0][0]} × {sizes[0][1]} pixels, but {image.size[0]} × {image.size[1]} where its boxes are"
            raise FormatError(f"the image has {what}", file=file)
        if found.orientation == 1 or not len(image.boxes):
            return image.boxes
        told = image.size is not None and sizes[0] != sizes[1]
        upright = image.size == sizes[1] if told else self.upright
        if upright is None:
            raise FormatError(
                "its EXIF data turn it, and width and height do not say whether its boxes are those of the turned one",
                file=file,
                remedy="Pass upright=True if they are, upright=False if they are those of the stored one.",
            )
        return image.boxes if upright else found.turned(image.boxes)

    def _files(self) -> list[str]:
        found = [file for file in self.files.walk(self.path, (".json",)) if _NAMES.search(os.path.basename(file))]
        if not found:
            raise FormatError(
                "there is no file instances_*.json or _annotations.coco.json",
                file=self.path,
                remedy="Pass the folder that has the images' folder and `annotations`.",
            )
        return self.files.chosen(found, self.path)

    def _folder(self, file: str) -> str:
        """The folder of a file's images: one that has the first of them."""
        images, places = _annotations(file).images, self._places(file)
        for place in places:
            if not images or os.path.isfile(os.path.join(place, images[0].name)):
                return place
        raise FormatError(
            f"its first image, {images[0].name!r:.200}, is in none of the folders where images usually are",
            file=file,
            remedy="Pass images='...', their folder below the path.",
        )

    def _places(self, file: str) -> list[str]:
        """Folders where the images of a file may be."""
        if self.images is not None:
            return [os.path.join(self.path, self.images)]
        beside, match = os.path.dirname(file), _NAMES.search(os.path.basename(file))
        roots = [beside] if os.path.samefile(beside, self.path) else [os.path.dirname(beside), beside, self.path]
        name = match["name"] if match else None
        names = ["", "images"] if name is None else [name, f"images/{name}", "images", ""]
        return [os.path.join(root, one) for one in names for root in roots]


@dataclass(frozen=True, slots=True)
class _Image:
    """An image and the objects in it: `boxes` are float64 ``[objects, 4]``, left, top, width, height."""

    number: int
    name: str
    size: tuple[int, int] | None
    boxes: NDArray[np.float64]
    labels: NDArray[np.int64]
    area: NDArray[np.float32]
    crowd: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Annotations:
    classes: list[str]
    images: list[_Image]


def _annotations(file: str) -> _Annotations:
    """What a file has, read once by each process as long as it stays as it is."""
    (stamp,) = stamps([file])
    return _read(file, tuple(stamp))


@lru_cache(2)
def _read(file: str, stamp: tuple[str | int, ...]) -> _Annotations:  # noqa: ARG001 - of another state is another result
    try:
        with open_file(file) as opened:
            tree = json.load(opened)
        return _checked(tree)
    except FormatError as error:
        raise FormatError(error.message, file=file, remedy=error.remedy) from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        raise FormatError(f"the file is no annotations as COCO has them: {reason}", file=file) from None


def _checked(tree: Any) -> _Annotations:
    categories = {_whole(one["id"], "id of a category"): str(one["name"]) for one in tree["categories"]}
    if len(categories) != len(tree["categories"]):
        raise FormatError("two categories have one id")
    labels = {number: label for label, number in enumerate(sorted(categories))}
    objects: dict[int, list[Mapping[str, Any]]] = {_whole(one["id"], "id of an image"): [] for one in tree["images"]}
    if len(objects) != len(tree["images"]):
        raise FormatError("two images have one id")
    for one in tree["annotations"]:
        number = _whole(one["image_id"], "image_id of an annotation")
        if number not in objects or one["category_id"] not in labels:
            what = f"image {number}" if number not in objects else f"category {one['category_id']!r:.50}"
            raise FormatError(f"annotation {one.get('id')!r:.50} is of {what}, which is not there")
        objects[number].append(one)
    images = [_image(one, objects[one["id"]], labels) for one in tree["images"]]
    return _Annotations([categories[number] for number in sorted(categories)], images)


def _image(one: Mapping[str, Any], objects: list[Mapping[str, Any]], labels: Mapping[int, int]) -> _Image:
    boxes = np.array([item["bbox"] for item in objects], np.float64).reshape(len(objects), 4)
    if not np.isfinite(boxes).all():
        raise FormatError(f"image {one['id']} has a box of no numbers")
    area = [item.get("area", box[2] * box[3]) for item, box in zip(objects, boxes.tolist(), strict=True)]
    size = (_whole(one["width"], "width"), _whole(one["height"], "height")) if "width" in one else None
    if size is not None and not (0 < size[0] < _LARGEST and 0 < size[1] < _LARGEST):
        raise FormatError(f"image {one['id']} has {size[0]} × {size[1]} pixels")
    return _Image(
        one["id"],
        str(one["file_name"]),
        size,
        boxes,
        np.array([labels[item["category_id"]] for item in objects], np.int64),
        np.array(area, np.float32),
        np.array([bool(item.get("iscrowd", 0)) for item in objects], np.bool_),
    )


def _leads_out(name: str) -> bool:
    return os.path.isabs(name) or os.path.normpath(name).startswith("..") or "\0" in name


def _whole(value: Any, what: str) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise FormatError(f"the {what} is {value!r:.50}, no whole number")
    return value
