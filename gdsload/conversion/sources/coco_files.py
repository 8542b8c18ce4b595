"""Datasets in the layout of COCO: images, and files of annotations that name them, with boxes and categories."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Unpack
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import digest_of, open_file, stamps
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import USUAL_BYTES, filled, row_parts, some
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.boxes import BOX_WAYS_OUT, BoxedImage, Boxes, BoxForm, batch_of_one, image_of
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageSource
from gdsload.errors import FormatError

_LARGEST_NUMBER = 1e18


@dataclass(frozen=True, slots=True)
class CocoImage:
    """An image and the objects in it: `boxes` are float64 ``[objects, 4]``, left, top, width, height.

    `fault` says what is wrong with one of its objects; it has none then.
    """

    number: int
    name: str
    size: tuple[int, int] | None
    boxes: NDArray[np.float64]
    labels: NDArray[np.int64]
    area: NDArray[np.float32]
    crowd: NDArray[np.bool_]
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class CocoAnnotations:
    """The content of a file of annotations: the names of classes, images, and notes for users."""

    classes: list[str]
    images: list[CocoImage]
    notes: list[str]


def read_annotations(file: str) -> CocoAnnotations:
    """The annotations of a file, which each process reads once as long as the file does not change.

    Raises:
        FormatError: if it is damaged.
    """
    (stamp,) = stamps([file])
    return _read(file, tuple(stamp))


@lru_cache(2)
def _read(file: str, stamp: tuple[str | int, ...]) -> CocoAnnotations:  # noqa: ARG001 - of another state is another result
    with reading("the file is no annotations as COCO has them", file), open_file(file) as opened:
        try:
            return _checked(json.load(opened))
        except FormatError as error:
            raise error.within(file) from None


def _checked(tree: Any) -> CocoAnnotations:
    """The content of a file; raises anything if it is damaged."""
    has_objects = tree.get("annotations") is not None  # the file of a test set has none
    annotations, kinds = (tree[name] if has_objects else tree.get(name) or [] for name in ("annotations", "categories"))
    categories = dict(zip(_ids(kinds, "category"), (str(one["name"]) for one in kinds), strict=True))
    labels = {number: label for label, number in enumerate(sorted(categories))}
    listed = tree["images"]
    objects: dict[int, list[Mapping[str, Any]]] = {number: [] for number in _ids(listed, "image")}
    for one in annotations:
        number, category = (_whole(one, name, "annotation") for name in ("image_id", "category_id"))
        if number not in objects or category not in labels:
            what = f"image {number}" if number not in objects else f"category {category}"
            raise FormatError(
                f"annotation {one.get('id')!r:.50} is of {what}, which is not there",
                remedy="List it in the file, or remove the annotation.",
            )
        objects[number].append(one)
    images = [_image(one, objects[_whole(one, "id", "image")], labels) for one in listed]
    _check_names(images)
    notes = [] if has_objects else ["the file has no annotations: no image has an object"]
    return CocoAnnotations([categories[number] for number in sorted(categories)], images, notes)


def _image(one: Mapping[str, Any], objects: list[Mapping[str, Any]], labels: Mapping[int, int]) -> CocoImage:
    number, boxes, areas, crowd, fault = _whole(one, "id", "image"), [], [], [], None
    for item in objects:
        try:
            box = item.get("bbox")
            if not isinstance(box, list) or len(box) != 4 or not _are_numbers(box) or min(box[2:]) < 0:
                raise FormatError(f"has the bbox {box!r:.100}, not left, top, width and height in pixels")
            area = box[2] * box[3] if item.get("area") is None else item["area"]
            if not _are_numbers([area]):
                raise FormatError(f"has the area {area!r:.50}, no number")
            if (is_crowd := item.get("iscrowd") or 0) not in (0, 1):
                raise FormatError(f"has iscrowd {is_crowd!r:.50}, not 0 or 1")
        except FormatError as error:
            fault = fault or f"annotation {item.get('id')!r:.50} of image {number} {error.message}"
            continue
        boxes.append(list(map(float, box)))
        areas.append(area)
        crowd.append(bool(is_crowd))
    has_size = one.get("width") is not None or one.get("height") is not None
    return CocoImage(
        number,
        _name(one, number),
        (_whole(one, "width", "image"), _whole(one, "height", "image")) if has_size else None,
        np.array(boxes, np.float64).reshape(-1, 4),
        np.array([labels[int(item["category_id"])] for item in objects], np.int64),
        np.array(areas, np.float32),
        np.array(crowd, np.bool_),
        fault,
    )


def _are_numbers(values: list[Any]) -> bool:
    return all(type(one) in (int, float) and abs(one) < _LARGEST_NUMBER for one in values)


def _name(one: Mapping[str, Any], number: int) -> str:
    """The name of an image's file; LVIS has the address of the original instead, with its folder."""
    name = one.get("file_name")
    if name is None and isinstance(one.get("coco_url"), str):
        name = "/".join(unquote(urlsplit(one["coco_url"]).path).split("/")[-2:])
    if not isinstance(name, str) or not name:
        raise FormatError(f"image {number} has the file_name {name!r:.50}, no name of a file")
    return name


def _check_names(images: list[CocoImage]) -> None:
    """Refuse two images of one file: each would have a part of its objects."""
    seen: dict[str, int] = {}
    for image in images:
        other = seen.setdefault(os.path.normpath(image.name), image.number)
        if other != image.number:
            raise FormatError(
                f"images {other} and {image.number} are one file, {image.name!r:.200}",
                remedy="Put the annotations of both under one id.",
            )


def _ids(listed: list[Mapping[str, Any]], what: str) -> list[int]:
    found = [_whole(one, "id", what) for one in listed]
    if twice := [number for number, count in Counter(found).items() if count > 1]:
        raise FormatError(f"{what} {twice[0]} is listed twice", remedy="Give each another id, or remove one.")
    return found


def _whole(one: Mapping[str, Any], name: str, what: str) -> int:
    value = one.get(name)
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise FormatError(f"the {name} of {what} {one.get('id')!r:.50} is {value!r:.50}, no whole number")
    return value


_NAMES = re.compile(r"(^(instances|lvis)_(?P<name>.+)|_annotations\.coco)\.json$", re.IGNORECASE)
_TEST_NAMES = re.compile(r"^image_info_(?P<name>.+)\.json$", re.IGNORECASE)
_FILES = "instances_*.json, lvis_*.json, _annotations.coco.json or image_info_*.json"


class CocoSource(ImageSource):
    """Images and the boxes of objects in them: ``annotations/instances_*.json``, or ``_annotations.coco.json``.

    Also LVIS's ``lvis_*.json``, and test sets without annotations, ``image_info_*.json``, where there is no other file.
    A sample is an image, in the order of the file, also one without objects. Fields: ``image``, uint8 ``[channels,
    height, width]``; ``boxes``, ragged float32 ``[objects, 4]``; ``labels``, ragged int64 ``[objects]``, positions in
    the list of categories in the order of their ids; ``area``, ragged float32, as it stands there; ``iscrowd``, ragged
    bool; ``image_id``, int64. An image with an object that has no box is a bad sample. Outlines, key points and
    captions are not written. An image is turned as its EXIF data say, and its boxes with it, unless its width and
    height in the file of annotations say that they are those of the turned image.

    Args:
        path: the folder.
        boxes: their form: ``"xywh"`` (left, top, width, height, as COCO has them), ``"xyxy"`` (left, top, right,
            bottom), both in pixels of the image as it is made, or ``"cxcywh"``: centre, width and height as shares of
            the image's.
        images: the folder of the images, below `path`. None: looked for under the names that it usually has.
        upright: of images that EXIF data turn, whether boxes are those of the turned image, where width and height do
            not say it. None: such an image is an error.
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
        return {"classes": {"labels": self.classes}, "boxes": self.boxes.wanted}

    def notes(self) -> list[str]:
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
        found: list[Part] = []
        for file in self._files():
            self._folder(file)  # refuses a file whose images are nowhere
            prefix = f"{os.path.basename(file)}, images"
            count = len(read_annotations(file).images)
            found += row_parts(count, USUAL_BYTES, target_bytes, prefix=prefix, where=(file,))
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
        remedy = "Pass the folder that has the images' folder and `annotations`, and give the file such a name."
        raise FormatError(f"there is no file {_FILES}", file=self.path, remedy=remedy)

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
