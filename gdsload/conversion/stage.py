"""The folder in which a conversion grows: its plan, and the parts that are finished.

    .OUT.gdsload-convert/
        plan.json          what is converted, and how; another conversion to the same place is refused
        lock               held by the converter that is at work
        part-000000/       a whole dataset, made visible by one rename when its last byte is on disk
        part-000000.json   what was skipped in it

Whatever kills a converter, a part is there whole or not at all, and the next run with the same plan goes on.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gdsload.conversion.source import Part
from gdsload.errors import OptionError
from gdsload.format.schema import Schema
from gdsload.paths import absolute
from gdsload.publish import fsync_path, write_error

__all__ = ["PartReport", "Skipped", "Stage", "part_folder", "part_report", "write_json"]

_VERSION = 1
_PLAN = "plan.json"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample that could not be converted: where it comes from, and why."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class PartReport:
    """What came of a part."""

    number: int
    samples: int
    nbytes: int
    skipped: tuple[Skipped, ...]


class Stage:
    """The folder of one conversion.

    Args:
        out: where the dataset will appear.
        wanted: what is converted, and how; JSON-able.
        restart: throw away what another conversion has left.

    Raises:
        OptionError: if another conversion has left something there, or is at work.
        WriteError: if nothing can be written there.
    """

    def __init__(self, out: str, wanted: dict[str, Any], *, restart: bool) -> None:
        parent, name = os.path.split(absolute(out))
        self.folder = os.path.join(parent, f".{name}.gdsload-convert")
        try:
            os.makedirs(self.folder, exist_ok=True)
            self._lock = os.open(os.path.join(self.folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise write_error("nothing can be written there", error, self.folder) from error
        try:
            self._take(wanted, restart)
        except BaseException:
            os.close(self._lock)
            raise

    def _take(self, wanted: dict[str, Any], restart: bool) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OptionError("another conversion to this place is at work", file=self.folder) from None
        self.plan = None if restart else _read_json(os.path.join(self.folder, _PLAN))
        if (
            self.plan is None
        ):  # what is there without one is of a conversion that was through, and interrupted after that
            self._clear()
        wanted = json.loads(json.dumps({"version": _VERSION, **wanted}))
        if self.plan is None:
            self.plan = {"wanted": wanted}
        elif self.plan.get("wanted") != wanted:
            raise OptionError(
                "another conversion to this place was interrupted: its source or its options were others",
                file=self.folder,
                remedy="Run it again as it was, or pass restart=True (--restart) to throw its parts away.",
            )

    def _clear(self) -> None:
        """Remove everything but the lock, the plan first: parts without a plan are of no use to anybody."""
        names = sorted(set(os.listdir(self.folder)) - {"lock"}, key=lambda name: name != _PLAN)
        for name in names:
            path = os.path.join(self.folder, name)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)

    @property
    def planned(self) -> tuple[Schema, list[Part]] | None:
        """Schema and parts, if an earlier run has worked them out."""
        plan = self.plan or {}
        if "parts" not in plan:
            return None
        parts = [Part(p["name"], tuple(p["where"]), p["samples"], p["nbytes"]) for p in plan["parts"]]
        return Schema.from_json(plan["schema"]), parts

    def keep(self, schema: Schema, parts: list[Part]) -> None:
        """Remember schema and parts, so that a later run has the very same."""
        listed = [
            {"name": part.name, "where": list(part.where), "samples": part.samples, "nbytes": part.nbytes}
            for part in parts
        ]
        self.plan = {**(self.plan or {}), "schema": schema.to_json(), "parts": listed}
        write_json(os.path.join(self.folder, _PLAN), self.plan)

    def finished(self, number: int) -> PartReport | None:
        """What came of a part, if it is finished."""
        return part_report(self.folder, number)

    def close(self, *, remove: bool) -> None:
        """Let go of the folder; removed, when the dataset is where it belongs."""
        with suppress(OSError):
            if remove:
                self._clear()
                shutil.rmtree(self.folder)
        os.close(self._lock)


def part_folder(stage: str, number: int) -> str:
    """The folder of a part."""
    return os.path.join(stage, f"part-{number:06d}")


def part_report(stage: str, number: int) -> PartReport | None:
    """What came of a part, if it is finished."""
    folder = part_folder(stage, number)
    found = _read_json(folder + ".json")
    if found is None or not os.path.isdir(folder):
        return None
    skipped = tuple(Skipped(one["key"], one["reason"]) for one in found["skipped"])
    return PartReport(number, found["samples"], found["nbytes"], skipped)


def write_json(path: str, tree: dict[str, Any]) -> None:
    """Write a small file that is there whole or not at all.

    Raises:
        WriteError: if the disk is full or fails.
    """
    try:
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(tree, file)
        fsync_path(path + ".new")
        os.replace(path + ".new", path)
    except OSError as error:
        raise write_error("the file cannot be written", error, path) from error


def _read_json(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
