"""The folder in which a conversion grows: its plan, and the parts that are finished.

    .OUT.gdsload-convert/
        plan.json          what is converted, and how; another conversion to the same place is refused
        lock               held by the converter that is at work
        part-000000/       a whole dataset, made visible by one rename when its last byte is on disk
        part-000000.json   what was skipped in it

If a converter is killed, each part is there whole or not at all, and the next run with the same plan goes on.

A folder of this name that is a link, or holds what no conversion makes (links, files of other names, also in parts), is
refused, and nothing in it is removed. Ctrl-C
while a finished conversion tidies up may leave it; the next conversion to the same place removes it.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from gdsload.conversion.source import Part
from gdsload.errors import GdsloadError, OptionError, ReadError, Skipped
from gdsload.shards.durable import fsync_path, make_folders
from gdsload.shards.format.schema import Schema
from gdsload.shards.publish import remove_interrupted, strangers
from gdsload.shards.shard_folders import link_target
from gdsload.shards.status import close, is_there, naming, read_error, write_error
from gdsload.system.file_locks import lock_file
from gdsload.system.paths import absolute

_VERSION = 4
_PLAN, _LOCK = "plan.json", "lock"
_FINISHED = re.compile(r"part-\d{6,}\.json")
_FILE = re.compile(
    rf"{_LOCK}|({_PLAN}|{_FINISHED.pattern})(\.new)?|\.(part-\d{{6,}}|ordered)\.gdsload-[0-9a-f]{{12}}\.lock"
)
_FOLDER = re.compile(r"part-\d{6,}|ordered|\.(part-\d{6,}|ordered)\.gdsload-[0-9a-f]{12}(\.old)?")
_NAMED = 5
_PIECE = 2**20


@dataclass(frozen=True, slots=True)
class PartReport:
    """The result of a part.

    Attributes:
        number: the part's number.
        samples: how many are written.
        nbytes: bytes of their shards.
        skipped: those that were left out.
        clipped: how many values of each field a cast has clipped.
    """

    number: int
    samples: int
    nbytes: int
    skipped: tuple[Skipped, ...]
    clipped: Mapping[str, int] = field(default_factory=dict)


class StagingFolder:
    """The folder of one conversion.

    Args:
        out: where the dataset will appear.
        wanted: what is converted, and how; JSON-able.
        restart: throw away what another conversion has left. One that has finished nothing is no obstacle.

    Raises:
        OptionError: if another conversion has left something there, or is at work, or if there is something that no
            conversion has made.
        WriteError: if nothing can be written there.
    """

    def __init__(self, out: str, wanted: dict[str, Any], *, restart: bool) -> None:
        parent, name = os.path.split(absolute(out))
        self.folder = os.path.join(parent, f".{name}.gdsload-convert")
        with naming(write_error, "nothing can be written there", self.folder):
            if is_there(self.folder):
                self._check_contents()
            make_folders(self.folder, 0o775)  # whatever the umask: see `_check_contents`
            self._lock = _open_itself(self._path(_LOCK), os.O_RDWR | os.O_CREAT)
        try:
            self._take_lock()
            self._take(wanted, restart)
        except BaseException:
            close(self._lock)
            raise

    def _check_contents(self) -> None:
        """Refuse a folder in which something is that no conversion has made."""
        remedy = "Look what it is; move it elsewhere or remove it, or write to another path."
        if os.path.islink(self.folder) or not os.path.isdir(self.folder):
            what = "what is where the conversion would grow is a symbolic link, or no folder. Nothing there was touched"
            raise OptionError(what, file=self.folder, remedy=remedy)
        status = os.stat(self.folder)
        if status.st_uid != os.geteuid():
            what = "the folder in which the conversion would grow is another user's, who could exchange its parts"
            raise OptionError(what, file=self.folder, remedy=remedy)
        if status.st_mode & stat.S_IWOTH:
            what = "all users may write to the folder in which the conversion would grow, and could exchange its parts"
            raise OptionError(what, file=self.folder, remedy=remedy)
        with _looking(self.folder):
            names, foreign = self._names_and_foreign()
        if foreign or (names and _LOCK not in names):
            more = f" and {len(foreign) - _NAMED} more" if len(foreign) > _NAMED else ""
            listed = ", ".join(map(repr, sorted(foreign or names)[:_NAMED])) + more
            what = f"the folder in which the conversion would grow holds what none has made: {listed}"
            raise OptionError(f"{what}. Nothing there was touched", file=self.folder, remedy=remedy)

    def _names_and_foreign(self) -> tuple[list[str], list[str]]:
        """The names in the folder; and those, there and in its parts, that no conversion has made."""
        names, foreign = list[str](), list[str]()
        with os.scandir(self.folder) as entries:
            for entry in entries:
                names.append(entry.name)
                if entry.is_dir(follow_symlinks=False) and _FOLDER.fullmatch(entry.name):
                    with suppress(FileNotFoundError):  # the conversion that is at work has renamed it
                        foreign += [os.path.join(entry.name, other) for other in strangers(entry.path)]
                elif not (entry.is_file(follow_symlinks=False) and _FILE.fullmatch(entry.name)):
                    foreign.append(entry.name)
        return names, foreign

    def _take_lock(self) -> None:
        try:
            lock_file(self._lock, wait=False)  # a file system without locks cannot tell of another conversion
            # The conversion that held it until now may have finished, and have removed it.
            if os.path.samestat(os.stat(self._path(_LOCK)), os.fstat(self._lock)):
                fsync_path(self.folder)  # before there is more in it, which without a lock is taken for another's
                return
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError as error:
            raise write_error("the lock cannot be taken", error, self.folder) from error
        raise OptionError(
            "another conversion to this place is at work", file=self.folder, remedy="Wait for its end, or stop it."
        )

    def _take(self, wanted: dict[str, Any], restart: bool) -> None:
        wanted = json.loads(json.dumps({"version": _VERSION, **wanted}))
        self.plan = None if restart else _read_json(self._path(_PLAN))
        if self.plan is not None and self.plan.get("wanted") != wanted:
            if self._finished_count():
                raise OptionError(
                    "another conversion to this place was interrupted: its source or its options were others",
                    file=self.folder,
                    remedy="Run it again as it was, or pass `restart=True` to throw its parts away.",
                )
            self.plan = None
        if self.plan is None:  # a folder without one is of a conversion that was interrupted after its end
            self._clear()
            self.plan = {"wanted": wanted}

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def _clear(self) -> None:
        """Remove all but the lock, the plan first: parts without a plan are useless."""
        # Folders before their locks, which list what belongs to them on other drives.
        for name in sorted(os.listdir(self.folder), key=lambda name: (name != _PLAN, name.endswith(".lock"))):
            path = self._path(name)
            if os.path.isdir(path) and not os.path.islink(path):
                remove_interrupted(path, self.folder)
            elif name != _LOCK:
                os.unlink(path)
            if name == _PLAN:
                fsync_path(self.folder)  # a plan that came back after a power failure would promise parts that are gone

    @property
    def planned(self) -> tuple[Schema, list[tuple[Part, ...]]] | None:
        """Schema and tasks, if an earlier run has worked them out."""
        plan = self.plan or {}
        if "tasks" not in plan:
            return None
        tasks = [tuple(Part(**{**part, "where": tuple(part["where"])}) for part in parts) for parts in plan["tasks"]]
        return Schema.from_json(plan["schema"]), tasks

    def keep(self, schema: Schema, tasks: Sequence[Sequence[Part]]) -> None:
        """Remember schema and tasks, the parts of each, so that a later run has the very same."""
        listed = [[{**asdict(part), "where": list(part.where)} for part in parts] for parts in tasks]
        self.plan = {**(self.plan or {}), "schema": schema.to_json(), "tasks": listed}
        write_json(self._path(_PLAN), self.plan)

    def _finished_count(self) -> int:
        return sum(_FINISHED.fullmatch(name) is not None for name in os.listdir(self.folder))

    def progress(self) -> str:
        """The progress of the conversion, and the ways to go on, for users who interrupt it."""
        if not (done := self._finished_count()):
            return "no part is finished yet; run the same again to begin again."
        parts = len((self.plan or {}).get("tasks", ()))
        whole = f"{done} of {parts} parts are finished, in {self.folder}"
        return f"{whole}; run the same again to go on, or with `restart=True` to begin again"

    def close(self, *, remove: bool) -> None:
        """Release the folder.

        Args:
            remove: whether the dataset has been published. The folder is also removed if nothing in it would save the
                next run any work.
        """
        try:
            with suppress(OSError):
                if remove or (self.planned is None and not self._finished_count()):
                    self._clear()
                    fsync_path(self.folder)  # what came back without its lock would be taken for another's
                    os.unlink(self._path(_LOCK))
                    os.rmdir(self.folder)
        finally:  # also if Ctrl-C ends it: this process could not take the lock again
            close(self._lock)


def part_folder(stage: str, number: int) -> str:
    """The folder of a part."""
    return os.path.join(stage, f"part-{number:06d}")


def part_report(stage: str, number: int) -> PartReport | None:
    """The result of a part, if it is finished; else None. Raises ReadError if a shard's drive is not there."""
    folder = part_folder(stage, number)
    found = _read_json(folder + ".json")
    if found is None or not os.path.isdir(folder):
        return None
    _check_links(folder)
    skipped = tuple(Skipped(one["key"], one["reason"]) for one in found["skipped"])
    return PartReport(number, found["samples"], found["nbytes"], skipped, found.get("clipped", {}))


def _check_links(part: str) -> None:
    with _looking(part), os.scandir(part) as entries:
        for link in [entry for entry in entries if entry.is_symlink()]:
            try:
                link_target(part, link.name)
            except ReadError as error:
                remedy = f"{error.remedy} Or pass `restart=True` to begin again."
                message = f"a part that is finished has {error.message}"
                raise ReadError(message, file=link.path, remedy=remedy) from None


def write_json(path: str, tree: dict[str, Any]) -> None:
    """Write a small file that is there whole or not at all; a `WriteError` if the disk is full or fails."""
    with naming(write_error, "the file cannot be written", path):
        with open(path + ".new", "w", encoding="utf-8", opener=_open_itself) as file:
            json.dump(tree, file)
        fsync_path(path + ".new")
        os.replace(path + ".new", path)


def _open_itself(path: str, flags: int) -> int:
    """Open a file, but none that a link leads to."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


@contextmanager
def _looking(path: str) -> Iterator[None]:
    """Raise a `ReadError` for what the system refuses in here, unless it says that nothing is there."""
    try:
        yield
    except (GdsloadError, FileNotFoundError):
        raise
    except (OSError, MemoryError) as error:
        raise read_error("what an interrupted run has left cannot be read", error, path) from error


def _read_json(path: str) -> dict[str, Any] | None:
    """The content of a small file; None if it is missing, or is none of ours.

    Raises:
        ReadError: if it cannot be read now. The part it describes would be thrown away, were it taken for missing.
    """
    try:
        with _looking(path), open(path, encoding="utf-8", opener=_open_itself) as file:
            pieces = list[str]()
            while piece := file.read(_PIECE):
                if "\0" in piece:
                    return None  # a hole, which may be larger than the memory
                pieces.append(piece)
            found = json.loads("".join(pieces))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
