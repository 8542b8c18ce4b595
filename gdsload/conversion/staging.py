"""The folder in which a conversion grows: its plan, and the parts that are finished.

    .OUT.gdsload-convert/
        plan.json          what is converted, and how; another conversion to the same place is refused
        lock               held by the converter that is at work
        part-000000/       a whole dataset, made visible by one rename when its last byte is on disk
        part-000000.json   what was skipped in it

If a converter is killed, each part is there whole or not at all, and the next run with the same plan goes on.

A folder of this name may also come out of an archive, or be a link. Only what a conversion makes is ever removed, no
link is followed, and a folder with anything else in it is refused.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

from gdsload.conversion.reading_notes import Noted
from gdsload.conversion.source import Part
from gdsload.errors import GdsloadError, OptionError, ReadError, Skipped
from gdsload.shards.format.schema import Schema
from gdsload.shards.publish import fsync_path, remove_interrupted, strangers, write_error
from gdsload.shards.shard_folders import link_target
from gdsload.system.file_locks import lock_file
from gdsload.system.paths import absolute

__all__ = ["PartReport", "StagingFolder", "part_folder", "part_report", "tidy_up", "write_json"]

_VERSION = 3
_PLAN, _LOCK = "plan.json", "lock"
_FINISHED = re.compile(r"part-\d{6,}\.json")
_FILE = re.compile(
    rf"{_LOCK}|(plan\.json|{_FINISHED.pattern})(\.new)?|\.(part-\d{{6,}}|ordered)\.gdsload-[0-9a-f]{{12}}\.lock"
)
_FOLDER = re.compile(r"part-\d{6,}|ordered|\.(part-\d{6,}|ordered)\.gdsload-[0-9a-f]{12}(\.old)?")
_NAMED = 5


@dataclass(frozen=True, slots=True)
class PartReport:
    """The result of a part.

    Attributes:
        number: the part's number.
        samples: how many are written.
        nbytes: bytes of their shards.
        skipped: those that were left out.
        clipped: how many values of each field a cast has clipped.
        noted: notes for users on the data that was read.
    """

    number: int
    samples: int
    nbytes: int
    skipped: tuple[Skipped, ...]
    clipped: Mapping[str, int] = field(default_factory=dict)
    noted: Noted = field(default_factory=dict)


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
        self.folder = _stage_of(out)
        try:
            os.makedirs(os.path.dirname(self.folder), exist_ok=True)
            self._fd = _open_folder(self.folder)
        except OSError as error:
            if isinstance(error, GdsloadError):
                raise
            raise write_error("nothing can be written there", error, self.folder) from error
        try:
            self._lock = self._take_lock()
        except BaseException:
            os.close(self._fd)
            raise
        try:
            self._take(wanted, restart)
        except BaseException:
            self._let_go()
            raise

    def _take_lock(self) -> int:
        self._check_contents()
        try:
            lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=self._fd)
        except OSError as error:
            raise write_error("nothing can be written there", error, self.folder) from error
        try:
            lock_file(lock, wait=False)  # a file system without locks cannot tell of another conversion
            # The conversion that held it until now may have finished, and have removed it.
            if os.path.samestat(os.stat(_LOCK, dir_fd=self._fd, follow_symlinks=False), os.fstat(lock)):
                return lock
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError as error:
            os.close(lock)
            raise write_error("the lock cannot be taken", error, self.folder) from error
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
        raise OptionError(
            "another conversion to this place is at work", file=self.folder, remedy="Wait for its end, or stop it."
        )

    def _check_contents(self) -> None:
        """Refuse a folder in which something is that no conversion has made."""
        names = self._names()
        foreign = [name for name, mode in names.items() if not _is_ours(name, mode)]
        for name, mode in names.items():
            if stat.S_ISDIR(mode) and name not in foreign:
                foreign += [os.path.join(name, other) for other in self._strangers(name)]
        if foreign or (names and _LOCK not in names):
            more = f" and {len(foreign) - _NAMED} more" if len(foreign) > _NAMED else ""
            listed = ", ".join(map(repr, sorted(foreign or names)[:_NAMED])) + more
            _refuse(self.folder, f"the folder in which the conversion would grow holds what none has made: {listed}")

    def _names(self) -> dict[str, int]:
        """The names and modes of the folder's entries; those that vanish meanwhile are left out."""
        found = {}
        with _looking(self.folder), os.scandir(self._fd) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found[entry.name] = entry.stat(follow_symlinks=False).st_mode
        return found

    def _strangers(self, name: str) -> list[str]:
        with _looking(self._path(name)), suppress(FileNotFoundError):
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
            try:
                return strangers(fd)
            finally:
                os.close(fd)
        return []

    def _take(self, wanted: dict[str, Any], restart: bool) -> None:
        wanted = json.loads(json.dumps({"version": _VERSION, **wanted}))
        self.plan = None if restart else _read_json(self._path(_PLAN))
        if self.plan is not None and self.plan.get("wanted") != wanted:
            if self.finished_count():
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
        """Remove what a conversion makes but the lock, the plan first: parts without a plan are useless.

        By descriptor: another folder that has come to this place meanwhile is left alone.
        """
        names = self._names().items()
        # Folders before their locks, which list what belongs to them on other drives.
        for name, mode in sorted(names, key=lambda found: (found[0] != _PLAN, not stat.S_ISDIR(found[1]))):
            if name == _LOCK or not _is_ours(name, mode):
                continue
            if stat.S_ISDIR(mode):
                remove_interrupted(f"/proc/self/fd/{self._fd}/{name}", self.folder)
                continue
            try:
                os.unlink(name, dir_fd=self._fd)
            except OSError as error:
                what = "what an interrupted run has left cannot be removed"
                raise write_error(what, error, self._path(name)) from error

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

    def finished(self, number: int) -> PartReport | None:
        """The result of a part, if it is finished; else None.

        Raises:
            ReadError: if a shard of it is on a drive that is not there.
        """
        found = part_report(self.folder, number)
        if found is not None:
            _check_links(part_folder(self.folder, number))
        return found

    def finished_count(self) -> int:
        """The number of finished parts."""
        return sum(_FINISHED.fullmatch(name) is not None for name in self._names())

    def is_complete(self) -> bool:
        """Return whether all parts are finished."""
        return self.finished_count() == len((self.plan or {}).get("tasks", ())) > 0

    def progress(self) -> str:
        """The progress of the conversion, and the ways to go on, for users who interrupt it."""
        if not (done := self.finished_count()):
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
                if remove or (self.planned is None and not self.finished_count()):
                    self._clear()
                    os.unlink(_LOCK, dir_fd=self._fd)
                    os.rmdir(self.folder)
        finally:  # also if Ctrl-C ends it: this process could not take the lock again
            self._let_go()

    def _let_go(self) -> None:
        os.close(self._lock)
        os.close(self._fd)


def tidy_up(out: str) -> None:
    """Remove the folder of a finished conversion to `out` that was interrupted while it tidied up."""
    folder = _stage_of(out)
    if os.path.isdir(folder) and not os.path.lexists(os.path.join(folder, _PLAN)):
        with suppress(GdsloadError):  # another one is at work, or something in it is not a conversion's
            StagingFolder(out, {}, restart=False).close(remove=True)


def _stage_of(out: str) -> str:
    parent, name = os.path.split(absolute(out))
    return os.path.join(parent, f".{name}.gdsload-convert")


def _check_links(part: str) -> None:
    with _looking(part), os.scandir(part) as entries:
        for link in [entry for entry in entries if entry.is_symlink()]:
            try:
                link_target(part, link.name)
            except ReadError as error:
                remedy = f"{error.remedy} Or pass `restart=True` to begin again."
                message = f"a part that is finished has {error.message}"
                raise ReadError(message, file=link.path, remedy=remedy) from None


def _open_folder(path: str) -> int:
    """The descriptor of a folder, which is made if need be, and is no link."""
    with suppress(FileExistsError):
        os.mkdir(path)
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            what = "a symbolic link" if os.path.islink(path) else "no folder"
            _refuse(path, f"what is where the conversion would grow is {what}")
        raise


def _refuse(path: str, what: str) -> NoReturn:
    remedy = "Look what it is; move it elsewhere or remove it, or write to another path."
    raise OptionError(f"{what}. Nothing there was touched", file=path, remedy=remedy)


def _is_ours(name: str, mode: int) -> bool:
    """Return whether a conversion makes files or folders of this name and mode in its folder."""
    return bool((stat.S_ISREG(mode) and _FILE.fullmatch(name)) or (stat.S_ISDIR(mode) and _FOLDER.fullmatch(name)))


def part_folder(stage: str, number: int) -> str:
    """The folder of a part."""
    return os.path.join(stage, f"part-{number:06d}")


def part_report(stage: str, number: int) -> PartReport | None:
    """The result of a part, if it is finished; else None."""
    folder = part_folder(stage, number)
    found = _read_json(folder + ".json")
    if found is None or not os.path.isdir(folder):
        return None
    skipped = tuple(Skipped(one["key"], one["reason"]) for one in found["skipped"])
    noted = {what: (one[0], one[1]) for what, one in found.get("noted", {}).items()}
    return PartReport(number, found["samples"], found["nbytes"], skipped, found.get("clipped", {}), noted)


def write_json(path: str, tree: dict[str, Any]) -> None:
    """Write a small file that is there whole or not at all.

    Raises:
        WriteError: if the disk is full or fails.
    """
    try:
        with open(path + ".new", "w", encoding="utf-8", opener=_open_itself) as file:
            json.dump(tree, file)
        fsync_path(path + ".new")
        os.replace(path + ".new", path)
    except OSError as error:
        raise write_error("the file cannot be written", error, path) from error


def _open_itself(path: str, flags: int) -> int:
    """Open a file, but none that a link leads to."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


@contextmanager
def _looking(path: str) -> Iterator[None]:
    """Raise a `ReadError` for what the system refuses in here, unless it says that nothing is there."""
    try:
        yield
    except OSError as error:
        if isinstance(error, GdsloadError | FileNotFoundError):
            raise
        raise ReadError(f"what an interrupted run has left cannot be read: {error.strerror}", file=path) from error


def _read_json(path: str) -> dict[str, Any] | None:
    """The content of a small file; None if it is missing, or is none of ours.

    Raises:
        ReadError: if it cannot be read now. The part it describes would be thrown away, were it taken for missing.
    """
    try:
        with _looking(path), open(path, encoding="utf-8", opener=_open_itself) as file:
            found = json.load(file)
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None
