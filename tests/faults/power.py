"""Power loss: what a work did is cut after each of its calls, and what was not synced may or may not be on the disk.

The injector notes the calls. A change (of bytes of a file, or of names in folders) that an fsync has settled is on the
disk. Of the others there are none, all, one, all but one, or a random part; or the names of each drive in the order in
which they were made, up to one of them, as journals of file systems have it. A write may be there in part.

Right is: the dataset is the old or the new one, and the new one if the work had returned. The same work then comes to
the right end. It leaves nothing beside it where names were in order, or where one new name was lost.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.faults.sweep import FOREVER, tree
from tests.faults.works import DRIVES, POWER, SOURCE, Work

RANDOM = 3
"""Random parts of what is not settled, at each cut."""
EXCHANGE = 2  # linux/fs.h
ROOT = 0
Disk = dict[int, Any]
"""The content at each number: a folder as a dict from names to numbers, a link as a text, a file as bytes."""


@dataclass
class Change:
    """The changes that a call has made.

    Attributes:
        of: the folders, or the file: an fsync of one of them settles it.
        drive: the folder of its drive.
        names: those that have changed: the folder, the name, and the number that it now has, or None.
        begin: offset of the bytes that have changed.
        data: these bytes; None: the file ends there.
        settled: after how many calls it was settled.
    """

    of: set[int]
    drive: str
    names: tuple[tuple[int, str, int | None], ...] = ()
    begin: int = 0
    data: bytes | None = None
    settled: int = FOREVER

    @property
    def is_new(self) -> bool:
        """Return whether something got its first name."""
        return len(self.names) == 1 and self.names[0][2] is not None

    def torn(self, draw: random.Random) -> Change:
        """Of a write the first bytes alone."""
        return replace(self, data=self.data[: draw.randint(0, len(self.data))]) if self.data else self

    def do(self, disk: Disk) -> None:
        for folder, name, number in self.names:
            disk[folder] = {**disk[folder], name: number}
        if not self.names:
            (file,) = self.of
            before = disk[file][: self.begin].ljust(self.begin, b"\0")
            disk[file] = before if self.data is None else before + self.data + disk[file][len(before + self.data) :]


class Recording:
    """The changes of a work.

    Args:
        root: the folder that it works in, as it is before.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.first: Disk = {}
        self.inodes: dict[int, int] = {}
        """Numbers of folders, by their inodes."""
        self._read(root, ROOT)
        self.now = self.first.copy()
        self.changes: list[Change] = []
        self.cuts = [0]
        """How many changes there are after each number of calls."""

    def _read(self, path: Path, number: int) -> None:
        """Take in what is at a path."""
        if path.is_symlink():
            self.first[number] = os.readlink(path)
        elif path.is_file():
            self.first[number] = path.read_bytes()
        else:
            self.inodes[path.stat().st_ino] = number
            found = self.first[number] = {}
            for name in os.listdir(path):
                if path / name != self.root / SOURCE:  # which stays as it is, with its times
                    found[name] = len(self.first)
                    self._read(path / name, found[name])

    def note(self, call: str, value: int, data: bytes, a: str, b: str) -> None:
        """Take in a call: its number or offset, the bytes written, and its paths."""
        if a.endswith(" (deleted)"):
            return
        drive = Path(a).relative_to(self.root).parts[:1]
        self._drive = drive[0] if drive and drive[0] in DRIVES else ""
        folder, name, number = self._place(a)
        self.cuts.append(self.cuts[-1])
        if call == "fsync":
            for change in self.changes:
                if number in change.of:
                    change.settled = min(change.settled, len(self.cuts) - 1)
        elif call in ("write", "size"):
            self._add({number}, begin=value, data=data if call == "write" else None)
        elif call in ("open", "mkdir", "symlink") and number is None:
            number = len(self.first)
            self.first[number] = self.now[number] = {"open": b"", "mkdir": {}, "symlink": b}[call]
            if call == "mkdir":
                self.inodes[value] = number
            self._add({folder}, names=((folder, name, number),))
        elif call == "open" and value:
            self._add({number}, data=None)
        elif call == "unlink":
            self._add({folder}, names=((folder, name, None),))
        elif call in ("rename", "link"):
            other, new, found = self._place(b)
            names = ((folder, name, found if value == EXCHANGE else None),) if call == "rename" else ()
            self._add({folder, other} if names else {other}, names=(*names, (other, new, number)))

    def _place(self, path: str) -> tuple[int, str, int | None]:
        """The folder that a path is in, its name there, and the number that it has."""
        *above, name = Path(path).relative_to(self.root).parts or ("",)
        at = ROOT
        for one in above:
            at = self.now[at][one]
        return at, name, self.now[at].get(name) if name else ROOT

    def _add(self, of: set[int], **what: Any) -> None:
        self.changes.append(Change(of, self._drive, **what))
        self.cuts[-1] = len(self.changes)
        self.changes[-1].do(self.now)

    def parts(self, cut: int, draw: random.Random) -> Iterator[tuple[str, list[Change]]]:
        """The changes that may be on the disk if power is lost after `cut` calls, and in words which ones."""
        changes = self.changes[: self.cuts[cut]]
        loose = {place for place, change in enumerate(changes) if change.settled > cut}
        chosen = [("none", set[int]()), ("all", loose)]
        for place in sorted(loose):
            kind = "new name" if changes[place].is_new else "change"
            chosen += [(f"{kind} {place} alone", {place}), (f"all but {kind} {place}", loose - {place})]
        chosen += [(f"part {number}", {place for place in loose if draw.random() < 0.5}) for number in range(RANDOM)]
        for which, there in (*chosen, *_in_order(changes, loose, draw)):
            found = [
                change.torn(draw) if place in there and which not in ("none", "all") else change
                for place, change in enumerate(changes)
                if place in there or place not in loose
            ]
            yield which, found

    def put(self, changes: list[Change]) -> None:
        """Make the folder what it is on a disk with these changes."""
        disk = self.first.copy()
        for change in changes:
            change.do(disk)
        for path in self.root.iterdir():
            if path.name != SOURCE:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        made: dict[int, int] = {}
        self._put(self.root, ROOT, disk, made)
        inodes = {str(before): made.get(number) for before, number in self.inodes.items()}
        for mark in self.root.rglob("dataset-*-*"):  # which names the inode of a folder
            _, before, rest = mark.name.split("-", 2)
            mark.rename(mark.with_name(f"dataset-{inodes.get(before) or 0}-{rest}"))

    def _put(self, path: Path, number: int, disk: Disk, made: dict[int, int]) -> None:
        """Put what has a number at a path, and note the inodes of folders."""
        found = disk[number]
        if isinstance(found, str):
            path.symlink_to(found)
        elif isinstance(found, bytes):
            path.write_bytes(found)
        else:
            path.mkdir(exist_ok=True)
            made[number] = path.stat().st_ino
            for name, one in found.items():
                if one is not None:
                    self._put(path / name, one, disk, made)


def _in_order(changes: list[Change], loose: set[int], draw: random.Random) -> Iterator[tuple[str, set[int]]]:
    """Names up to each of them on its drive, with all or none of the other drives; of bytes a random part."""
    settled = dict.fromkeys(("", *DRIVES), -1)
    for place, change in enumerate(changes):
        if change.names and place not in loose:
            settled[change.drive] = place
    last = [place for place in sorted(loose) if changes[place].names and place > settled[changes[place].drive]]
    for place, others in itertools.product(last, (False, True)):
        ends = (dict.fromkeys(settled, len(changes)) if others else settled) | {changes[place].drive: place}
        there = {
            one for one in loose if (one <= ends[changes[one].drive] if changes[one].names else draw.random() < 0.5)
        }
        yield f"in order up to name {place}, {'all' if others else 'none'} on other drives", there


def recorded(root: Path, work: Work, notes: Path) -> Recording:
    """Do a work, and return what it has changed."""
    injector = ctypes.CDLL(None)
    made = Recording(root)
    with open(notes, "w+b") as file:
        injector.faults_note(file.fileno(), os.fsencode(root))
        work.do(root, False)
        injector.faults_note(-1, b"")
        file.seek(0)
        for line in file:
            call, value, size, a, b = os.fsdecode(line).rstrip("\n").split("\t")
            made.note(call, int(value), file.read(int(size)), a, b)
    found = tree(root), work.content(root)
    made.put(made.changes)
    assert (tree(root), work.content(root)) == found, "a call was not noted"
    return made


def power(folder: Path, names: list[str], share: float, seed: int) -> dict[str, int]:
    """All cuts of some works, or a share of them and the last one; prints what is wrong, returns counts."""
    draw, root = random.Random(seed), folder / "root"
    counts = {"calls": 0, "trials": 0, "old": 0, "new": 0, "wrong": 0}
    for name in names:
        work = POWER[name]
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        work.prepare(root)
        before = work.content(root)
        made = recorded(root, work, folder / "notes")
        after, files, calls = work.content(root), tree(root), len(made.cuts) - 1
        counts["calls"] += calls
        for cut in range(calls + 1):
            allowed = [after] if cut == calls else [before, after]
            for which, changes in made.parts(cut, draw):
                if cut == calls or draw.random() < share:
                    made.put(changes)
                    wrong = look(work, root, allowed, after, counts)
                    tidy = which.startswith(("in order", "all but new name"))
                    if tidy and not wrong and (found := tree(root)) != files:
                        wrong = f"left: {sorted(Counter(found) - Counter(files))}"
                    counts["trials"] += 1
                    counts["wrong"] += bool(wrong)
                    if wrong:
                        sys.stdout.write(f"{name}, call {cut} of {calls}, {which}: {wrong}\n")
    return counts


def look(work: Work, root: Path, allowed: list[Any], after: Any, counts: dict[str, int]) -> str:
    """The errors after a cut, or after the same work again; empty if there are none."""
    try:
        found = work.content(root)
        counts["new" if found == after else "old"] += 1
        if found not in allowed:
            return f"neither the old nor the new dataset: {found}"
        work.do(root, True)
        return "" if work.content(root) == after else "the second dataset is wrong"
    except Exception:
        return traceback.format_exc()[-1500:]
