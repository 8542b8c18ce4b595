"""Files of annotations in the form of COCO: images, and the objects in each."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import open_file, stamps
from gdsload.conversion.reasons import reading
from gdsload.errors import FormatError
from gdsload.system.units import counted

_LARGEST_NUMBER = 1e18
_LVIS = ("neg_category_ids", "not_exhaustive_category_ids")


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
    made: Counter[str] = Counter()
    images = [_image(one, objects[_whole(one, "id", "image")], labels, made) for one in listed]
    _check_names(images)
    notes = [] if has_objects else ["the file has no annotations: no image has an object"]
    if count := made["outlines"]:
        notes.append(f"{counted(count, 'object')} without a box: the box is that of the outline")
    if left := [name for name in _LVIS if any(name in one for one in listed)]:
        notes.append(f"which classes were looked for in an image ({', '.join(left)}) is left out")
    return CocoAnnotations([categories[number] for number in sorted(categories)], images, notes)


def _image(
    one: Mapping[str, Any], objects: list[Mapping[str, Any]], labels: Mapping[int, int], made: Counter[str]
) -> CocoImage:
    number, boxes, areas, crowd, fault = _whole(one, "id", "image"), [], [], [], None
    for item in objects:
        try:
            box = _box(item, made)
            area = box[2] * box[3] if item.get("area") is None else item["area"]
            if not _are_numbers([area]):
                raise FormatError(f"has the area {area!r:.50}, no number")
            if (is_crowd := item.get("iscrowd") or 0) not in (0, 1):
                raise FormatError(f"has iscrowd {is_crowd!r:.50}, not 0 or 1")
        except FormatError as error:
            fault = fault or f"annotation {item.get('id')!r:.50} of image {number} {error.message}"
            continue
        boxes.append(box)
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


def _box(item: Mapping[str, Any], made: Counter[str]) -> list[float]:
    """Left, top, width and height of an object; of one without a box those of its outline.

    Raises:
        FormatError: if it has neither. The message is what it has, without the object.
    """
    box = item.get("bbox")
    if box is not None and box != []:
        if not isinstance(box, list) or len(box) != 4 or not _are_numbers(box) or min(box[2:]) < 0:
            raise FormatError(f"has the bbox {box!r:.100}, not left, top, width and height in pixels")
        return list(map(float, box))
    outlines = item.get("segmentation")
    if not isinstance(outlines, list) or not outlines or not all(map(_is_outline, outlines)):
        raise FormatError("has no bbox, and no outline, a list of x and y, of which one could be made")
    points = np.concatenate([np.array(one, np.float64).reshape(-1, 2) for one in outlines])
    low, high = points.min(0), points.max(0)
    made["outlines"] += 1
    return [*low.tolist(), *(high - low).tolist()]


def _is_outline(given: Any) -> bool:
    return isinstance(given, list) and len(given) >= 4 and len(given) % 2 == 0 and _are_numbers(given)


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
