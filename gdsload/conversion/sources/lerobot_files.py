"""LeRobot datasets (versions 2 and 3): frames of episodes, with states, actions, and images that are in the tables."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gdsload.conversion.input_files import open_file, stamps
from gdsload.conversion.reasons import as_pasted, reading
from gdsload.conversion.row_source import BATCH_BYTES, check_columns, filled, runs
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.pictures import ImageForm, ImageSource, put
from gdsload.conversion.splits import ALL
from gdsload.errors import FormatError, OptionError

__all__ = ["LeRobotSource"]

_INFO, _TASKS = os.path.join("meta", "info.json"), os.path.join("meta", "tasks")
_MAX_INFO_BYTES = 2**24
_EPISODE = "episode_index"
_VARYING_BYTES = 64
_USUAL_RATIO = 8  # of pixels to an encoded image


class LeRobotSource(FieldChoice, ImageSource):
    """The frames of a LeRobot dataset, episode by episode, as fields of the names that its features have.

    States, actions and other numbers are arrays of the shapes that `meta/info.json` gives them, or numbers where a
    table has such; ``episode_index``, ``frame_index``, ``index``, ``task_index`` and ``timestamp`` are among them.
    Splits are those of that file. Images that are in the tables become uint8 ``[channels, height, width]``, turned as
    their EXIF data say. Videos are not decoded: they are refused unless `fields` leaves them out.

    Args:
        path: the folder, which has `meta/info.json` and `data`.
        **options: `size`, `resize`, `mode` and `keep_encoded`, as all sources of images have them: see `ImageForm`.
            `split` and `follow_links`, as all sources of files have them: see `SourceFiles`.
    """

    kind = "LeRobot dataset"
    threads = False

    @property
    def tasks(self) -> list[str]:
        """The texts of the tasks, which ``task_index`` is a position in; empty if there are none."""
        for suffix in (".parquet", ".jsonl"):
            if os.path.lexists(os.path.join(self.path, _TASKS + suffix)):
                return _tasks(self.files.inside(self.path, _TASKS + suffix))
        return []

    def metadata(self) -> dict[str, Any]:
        """The source's part of the dataset's metadata: the tasks, and frames a second."""
        names, described = self.tasks, self._described()
        found: dict[str, Any] = {"fps": described["fps"]} if isinstance(described.get("fps"), int | float) else {}
        return found | ({"classes": {"task_index": names}} if names else {})

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`."""
        return {
            "kind": self.kind,
            "files": stamps([self.files.inside(self.path, _INFO), *self._tables()]),
            "split": self.files.split,
            **self.form.to_json(),
        }

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: runs of row groups; those of other splits are passed over."""
        features, episodes = self._features(), self._episodes()
        row_bytes = sum(one.nbytes(self.look) for one in features)
        found: list[Part] = []
        for file in self._tables():
            with _opened(file) as table:
                _check(table.schema_arrow, features, file)
                rows = [table.metadata.row_group(number).num_rows for number in range(table.num_row_groups)]
                name = os.path.relpath(file, self.path)
                for low, high in runs([count * row_bytes for count in rows], target_bytes):
                    first, count = sum(rows[:low]), sum(rows[low:high])
                    if episodes is not None:
                        batches = table.iter_batches(row_groups=range(low, high), columns=[_EPISODE])
                        count = sum(int(_among(batch.column(0), episodes).sum()) for batch in batches)
                    if count:
                        where = (file, low, high, first)
                        found.append(Part(f"{name}, row groups {low} to {high - 1}", where, count, count * row_bytes))
        return filled(found, "frame", self.path)

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        file, low, high, row = str(part.where[0]), *(int(number) for number in part.where[1:])
        features, episodes = self._features(), self._episodes()
        has_images = any(one.is_image for one in features)
        step = max(BATCH_BYTES // sum(one.nbytes(self.look) for one in features), 1)
        columns = [one.name for one in features]
        with _opened(file) as table:
            wanted = list(dict.fromkeys([*columns, *([] if episodes is None else [_EPISODE])]))
            for whole in table.iter_batches(min(step, 65_536), row_groups=range(low, high), columns=wanted):
                whole.validate(full=True)
                batch, numbers = whole, np.arange(row, row + whole.num_rows)
                row += whole.num_rows
                if episodes is not None:
                    chosen = _among(whole.column(_EPISODE), episodes)
                    batch, numbers = whole.filter(need("pyarrow").array(chosen)), numbers[chosen]
                if not batch.num_rows:
                    continue
                if not has_images and not any(map(_has_holes, batch.columns)):
                    make = partial(_rows, batch, features, file)
                    yield Item(f"rows {numbers[0]} to {numbers[-1]}", make, batch.num_rows)
                    continue
                for position, number in enumerate(numbers.tolist()):
                    make = partial(self._row, batch.slice(position, 1), features, file)
                    yield Item(f"row {number}", make)

    def first_items(self) -> Iterator[Item]:
        """Those of the first tables' first rows, if they have images."""
        if any(one.is_image for one in self._features()):
            for file in self._tables():
                yield from self.read(Part("the first rows", (file, 0, 1, 0)))

    def _row(self, batch: Any, features: Sequence[_Feature], file: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for one in features:
            column = batch.column(batch.schema.names.index(one.name))
            if one.is_image:
                where = f"{file}: {one.name}"
                put(found, self.form.fields(one.name, _content(column[0].as_py(), one, file), where), where)
            else:
                put(found, {one.name: _values(column, one, file)[0]}, file)
        return found

    def _described(self) -> dict[str, Any]:
        path = self.files.inside(self.path, _INFO)
        with reading("the file is not as LeRobot writes it", path, OSError, ValueError, RecursionError):
            with open_file(path) as opened:
                found = json.loads(opened.read(_MAX_INFO_BYTES))
            if not isinstance(found, dict) or not isinstance(found.get("features"), dict) or not found["features"]:
                raise ValueError("it has no features")
            if not str(found.get("codebase_version")).startswith(("v2.", "v3.")):
                raise ValueError(f"its version is {found.get('codebase_version')!r:.50}; v2 and v3 are read")
            return found

    def _features(self) -> list[_Feature]:
        described = self._described()["features"]
        videos = [name for name, one in described.items() if isinstance(one, dict) and one.get("dtype") == "video"]
        names = check_columns(self.fields, described, self.path)
        if wanted := [name for name in videos if name in names]:
            others = as_pasted([name for name in described if name not in videos])
            raise FormatError(
                f"feature {wanted[0]!r} is video, which is not decoded",
                file=self.path,
                remedy=f"Choose the others, `fields={others}`, or convert its LeRobotDataset, which decodes "
                "frames, as a torch dataset: 'package.module:name'.",
            )
        return [_feature(name, described[name], self.path) for name in names]

    def _episodes(self) -> tuple[int, int] | None:
        """The first episode of the split, and that after its last one; None: all of them."""
        described, split = self._described().get("splits"), self.files.split
        splits = described if isinstance(described, dict) else {}
        names = sorted(splits)
        if split == ALL or (split is None and len(names) < 2):
            return None
        if split not in names:
            what = (
                f"it holds several splits: {', '.join(map(repr, names))}"
                if split is None
                else f"there is no split {split!r}"
            )
            listed = f"There are {', '.join(map(repr, names))}." if names else "There are no splits: leave it out."
            raise OptionError(what, file=self.path, remedy=f"Pass one as `split=`. {listed}")
        low, colon, high = str(splits[split]).partition(":")
        try:
            return int(low or 0), int(high) if high or not colon else 2**63 - 1
        except ValueError:
            raise FormatError(
                f"split {split!r} is {splits[split]!r:.50}, no range of episodes", file=self.path
            ) from None

    def _tables(self) -> list[str]:
        folder = os.path.join(self.path, "data")
        if not os.path.isdir(folder):
            raise FormatError("there is no folder `data`", file=self.path)
        return self.files.find((".parquet",), folder=folder, splits=False)


@dataclass(frozen=True, slots=True)
class _Feature:
    """A column of the tables: an image, a text, or numbers of a shape, ``()`` where a table has single ones."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def is_image(self) -> bool:
        return self.dtype == "image"

    def nbytes(self, look: ImageForm) -> int:
        if self.is_image and look.keep_encoded:
            return max(math.prod(self.shape) // _USUAL_RATIO, 1)
        if self.is_image and look.size is not None:
            return 3 * look.size * look.size
        itemsize = 1 if self.is_image else _VARYING_BYTES if self.dtype == "string" else np.dtype(self.dtype).itemsize
        return max(math.prod(self.shape) * itemsize, 1)


def _feature(name: str, given: Any, file: str) -> _Feature:
    failed = f"feature {name!r}, {given!r:.100}, is none that a field can have"
    with reading(failed, file, TypeError, KeyError, ValueError):
        dtype, shape = str(given["dtype"]), tuple(int(size) for size in given["shape"])
        if dtype not in ("image", "string") and np.dtype(dtype).kind not in "biuf":
            raise ValueError(f"it is of type {dtype}")
        if min(shape, default=1) < 1 or math.prod(shape) > 2**31:
            raise ValueError(f"its shape is {shape}")
        return _Feature(name, dtype, shape)


def _check(schema: Any, features: Sequence[_Feature], file: str) -> None:
    for feature in features:
        if schema.names.count(feature.name) != 1:
            raise FormatError(f"there is no column {feature.name!r}, or two", file=file)


def _among(episodes: Any, wanted: tuple[int, int]) -> Any:
    """A mask of the rows of the episodes from one number to another."""
    if episodes.null_count:
        raise ValueError("a row has no episode_index")
    numbers = np.asarray(episodes)
    if numbers.dtype.kind not in "iu":
        raise ValueError(f"episode_index is of type {numbers.dtype}")
    return (numbers >= wanted[0]) & (numbers < wanted[1])


def _has_holes(column: Any) -> bool:
    if column.null_count:
        return True
    return hasattr(column, "flatten") and hasattr(column.type, "value_type") and _has_holes(column.flatten())


def _rows(batch: Any, features: Sequence[_Feature], file: str) -> dict[str, Any]:
    return {one.name: _values(batch.column(batch.schema.names.index(one.name)), one, file) for one in features}


def _values(column: Any, feature: _Feature, file: str) -> Any:
    if _has_holes(column):
        raise FormatError(f"feature {feature.name!r} has no value, or one with a hole", file=file)
    types = need("pyarrow").types
    if feature.dtype == "string":
        if not types.is_string(column.type) and not types.is_large_string(column.type):
            raise FormatError(f"feature {feature.name!r} is of type {column.type!s:.100}, no text", file=file)
        return column.to_pylist()
    shape = [len(column), *(feature.shape if hasattr(column.type, "value_type") else ())]
    for size in shape[1:]:
        if not hasattr(column.type, "value_type") or not _all_of(column, size):
            raise FormatError(f"feature {feature.name!r} has values that are not of shape {feature.shape}", file=file)
        column = column.flatten()
    kind = column.type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise FormatError(f"feature {feature.name!r} is of type {kind!s:.100}, no numbers", file=file)
    return column.to_numpy(zero_copy_only=False).reshape(shape)


def _all_of(column: Any, size: int) -> bool:
    if need("pyarrow").types.is_fixed_size_list(column.type):
        return bool(column.type.list_size == size)
    return bool((np.diff(np.asarray(column.offsets)) == size).all())


def _content(value: Any, feature: _Feature, file: str) -> bytes:
    content = value.get("bytes") if isinstance(value, Mapping) else None
    if not isinstance(content, bytes) or not content:
        raise FormatError(
            f"feature {feature.name!r} has no image", file=file, remedy="Images must be in the tables themselves."
        )
    return content


def _tasks(file: str) -> list[str]:
    """The texts of tasks in the order of their numbers."""
    errors = OSError, ValueError, KeyError, TypeError, RecursionError
    with reading("the tasks are not as LeRobot writes them", file, *errors):
        if file.endswith(".parquet"):
            with _opened(file) as table:
                columns = table.read().to_pydict()
            numbers = columns.pop("task_index")
            (texts,) = [column for column in columns.values() if all(isinstance(one, str) for one in column)]
            found = dict(zip(numbers, texts, strict=True))
        else:
            with open_file(file) as opened:
                lines = [json.loads(line) for line in opened.read(_MAX_INFO_BYTES).splitlines() if line.strip()]
            found = {one["task_index"]: str(one["task"]) for one in lines}
        return [found[number] for number in range(len(found))]


@contextmanager
def _opened(file: str) -> Iterator[Any]:
    """A table; whatever is wrong with it is a FormatError. Checksums of its pages are compared."""
    arrow, parquet = need("pyarrow", file=file), need("pyarrow.parquet", file=file)
    with (
        reading("the table cannot be read", file, arrow.ArrowException, OSError, ValueError, KeyError),
        open_file(file) as opened,
        parquet.ParquetFile(opened, page_checksum_verification=True) as table,
    ):
        yield table
