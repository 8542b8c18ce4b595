"""LeRobot datasets (versions 2 and 3): frames of episodes, with states, actions, and images that are in the tables."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np

from gdsload.conversion.input_files import open_file, stamps
from gdsload.conversion.reasons import as_pasted, reading
from gdsload.conversion.row_source import check_columns
from gdsload.conversion.source import Part
from gdsload.conversion.sources.arrow_columns import image_columns
from gdsload.conversion.sources.arrow_types import inner_type, is_list, is_text
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.parquet_files import ParquetSource, TableFileOptions, opened_table
from gdsload.conversion.splits import ALL, no_such_split
from gdsload.errors import FormatError, OptionError

_INFO, _TASKS = os.path.join("meta", "info.json"), os.path.join("meta", "tasks")
_MAX_INFO_BYTES = 2**24


class LeRobotSource(ParquetSource):
    """The frames of a LeRobot dataset, episode by episode, as fields of the names that its features have.

    States, actions and other numbers are arrays of the shapes that `meta/info.json` gives them, or numbers where a
    table has such; ``episode_index``, ``frame_index``, ``index``, ``task_index`` and ``timestamp`` are among them.
    Splits are ranges of episodes, and taken together, ``split="all"``. Images that are in the tables become uint8
    ``[channels, height, width]``, turned as their EXIF data say. Videos are not decoded: they are refused unless
    `fields` leaves them out. A frame in which a value is missing, or of another shape than its feature, is an error of
    that frame.

    Args:
        path: the folder, which has `meta/info.json` and `data`.
    """

    kind = "LeRobot dataset"

    def __init__(self, path: str, **options: Unpack[TableFileOptions]) -> None:
        super().__init__(path, **options)
        # A robot must not learn a state or an action that was not recorded.
        self.table_form = replace(self.table_form, nan=False)

    @property
    def tasks(self) -> list[str]:
        """The texts of the tasks, which ``task_index`` is a position in; empty if there are none."""
        for suffix in (".parquet", ".jsonl"):
            if os.path.lexists(os.path.join(self.path, _TASKS + suffix)):
                return _tasks(self.files.inside(self.path, _TASKS + suffix))
        return []

    def metadata(self) -> dict[str, Any]:
        names, described = self.tasks, self._described()
        found: dict[str, Any] = {"fps": described["fps"]} if isinstance(described.get("fps"), int | float) else {}
        return found | ({"classes": {"task_index": names}} if names else {})

    def describe(self) -> dict[str, Any]:
        info = stamps([self.files.inside(self.path, _INFO)])
        return {**super().describe(), "info": info, "split": self.files.split}

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: row groups."""
        self._features()
        self._check_split()
        return super().parts(target_bytes)

    def _schema(self, table: Any, file: str) -> Any:
        """The columns of a file that are features, of the shapes that these have."""
        found = table.schema_arrow
        images, columns = image_columns(found), Counter(found.names)
        for one in self._features():
            if columns[one.name] != 1:
                raise FormatError(f"there is no column {one.name!r}, or two", file=file)
            if one.dtype == "image" and one.name not in images:
                kind = found.field(one.name).type
                raise FormatError(f"feature {one.name!r} has no images: its column is of type {kind!s:.100}", file=file)
        features = [one.shaped(found.field(one.name), file) for one in self._features()]
        return need("pyarrow").schema(features, found.metadata)

    def _described(self) -> dict[str, Any]:
        path = self.files.inside(self.path, _INFO)
        with reading("the file is not as LeRobot writes it", path), open_file(path) as opened:
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

    def _check_split(self) -> None:
        """Refuse one of several splits: they are ranges of episodes, in the same files."""
        described, split = self._described().get("splits"), self.files.split
        names = sorted(described) if isinstance(described, dict) else []
        if split == ALL or (len(names) < 2 and split in (None, *names)):
            return
        if split is not None and split not in names:
            raise no_such_split(split, names, self.path)
        raise OptionError(
            f"its splits, {', '.join(map(repr, names)):.200}, are ranges of episodes in the same files",
            file=self.path,
            remedy="Pass `split='all'`, and take the episodes of one by `episode_index`, with `ShardDataset.filter`.",
        )

    def all_files(self) -> list[str]:
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

    def shaped(self, column: Any, file: str) -> Any:
        """The column of a table's schema that it is, with lists of its shape."""
        arrow, kind = need("pyarrow"), column.type
        if self.dtype == "image":
            return column
        if is_text(inner_type(kind)) != (self.dtype == "string"):
            what = "text" if self.dtype == "string" else "numbers"
            raise FormatError(f"feature {self.name!r} is of type {kind!s:.100}, no {what}", file=file)
        if is_list(kind):
            kind = inner_type(kind)
            for size in reversed(self.shape):
                kind = arrow.list_(kind, size)
        return column.with_type(kind)


def _feature(name: str, given: Any, file: str) -> _Feature:
    failed = f"feature {name!r}, {given!r:.100}, is none that a field can have"
    with reading(failed, file, TypeError, KeyError, ValueError):
        dtype, shape = str(given["dtype"]), tuple(int(size) for size in given["shape"])
        if dtype not in ("image", "string") and np.dtype(dtype).kind not in "biuf":
            raise ValueError(f"it is of type {dtype}")
        if min(shape, default=1) < 1 or math.prod(shape) > 2**31:
            raise ValueError(f"its shape is {shape}")
        return _Feature(name, dtype, shape)


def _tasks(file: str) -> list[str]:
    with reading("the tasks are not as LeRobot writes them", file):
        if file.endswith(".parquet"):
            with opened_table(file) as table:
                columns = table.read().to_pydict()
            numbers = columns.pop("task_index")
            (texts,) = [column for column in columns.values() if all(isinstance(one, str) for one in column)]
            found = dict(zip(numbers, texts, strict=True))
        else:
            with open_file(file) as opened:
                lines = [json.loads(line) for line in opened.read(_MAX_INFO_BYTES).splitlines() if line.strip()]
            found = {one["task_index"]: str(one["task"]) for one in lines}
        return [found[number] for number in range(len(found))]
