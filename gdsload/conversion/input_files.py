"""Files of a source: which there are, which of them may be opened, and what tells that they are still the same.

Every source whose samples lie in files has these from a `SourceFiles`. So it holds for all kinds that a split is never
merged with another one in silence, that no name and no link leads out of the source's folder unless that is asked for,
and that nothing is opened but regular files: a pipe would be waited on for ever.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import IO, TypedDict

from gdsload.conversion.folders import names_in, unreadable
from gdsload.conversion.splits import ALL, level_splits, split_words, splits_of
from gdsload.errors import FormatError, OptionError
from gdsload.system.paths import absolute

__all__ = [
    "FileOptions",
    "SourceFiles",
    "Stamp",
    "check_file",
    "expanded",
    "is_folder",
    "natural",
    "noted_by",
    "open_file",
    "stamps",
]

Stamp = list[str | int]
_note: ContextVar[Callable[[Stamp], None] | None] = ContextVar("_note", default=None)
_BRACES = re.compile(r"\{(?:(\d{1,12})\.\.(\d{1,12})|([^{},]*(?:,[^{},]*)+))\}", re.ASCII)
_MAX_EXPANDED = 1_000_000
_KINDS = {
    stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}  # fmt: skip


def natural(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts names as people count: ``part-9`` before ``part-10``."""
    return [(0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in re.split(r"(\d+)", name) if piece]


def expanded(path: str) -> list[str] | None:
    """The files that a pattern of braces stands for, in its order; None if it has none, or is a path itself.

    ``{000..002}`` are numbers of so many digits, ``{a,b}`` those words.

    Raises:
        OptionError: if they are none, or too many.
    """
    if os.path.lexists(path) or not _BRACES.search(path):
        return None
    names, end = [""], 0
    for match in _BRACES.finditer(path):
        options = _alternatives(match)
        if not 1 <= len(names) * len(options) <= _MAX_EXPANDED:
            raise OptionError(f"{path!r:.200} stands for no file, or for more than {_MAX_EXPANDED}")
        names = [name + path[end : match.start()] + option for name in names for option in options]
        end = match.end()
    return [name + path[end:] for name in names]


def _alternatives(match: re.Match[str]) -> Sequence[str]:
    low, high, words = match.groups()
    if words is not None:
        return str(words).split(",")
    count = int(high) - int(low) + 1
    if count > _MAX_EXPANDED:
        return ()
    width = len(low) if low.startswith("0") else 0
    return [f"{int(low) + number:0{width}}" for number in range(count)]


def stamps(files: Iterable[str]) -> list[Stamp]:
    """Name, length, and times of the last change of content and of anything of each file, JSON-able.

    The second of these times nobody can put back, and a file that takes another's place has its own. Numbers of devices
    and inodes are left out: on network file systems they change by themselves. Of a symbolic link that leads to nothing
    they are its own: whoever opens it says so.
    """
    note = _note.get()
    found: list[Stamp] = []
    for file in files:
        try:
            status = os.stat(file)
        except OSError:
            status = os.lstat(file)
        found.append([file, status.st_size, status.st_mtime_ns, status.st_ctime_ns])
        if note is not None:
            note(found[-1])
    return found


@contextmanager
def noted_by(note: Callable[[Stamp], None]) -> Iterator[None]:
    """Have a function called with each file that `stamps` looks at in here: whatever source it is, and however many."""
    before = _note.set(note)
    try:
        yield
    finally:
        _note.reset(before)


def open_file(path: str) -> IO[bytes]:
    """Open a file for reading.

    Raises:
        FormatError: if it is none, but a pipe, say: that would wait for ever for somebody to write; or a symbolic link
            to nothing.
        OSError: if it cannot be opened.
    """
    return open(path, "rb", opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    try:
        fd = os.open(path, flags | os.O_NONBLOCK)
    except OSError:
        if os.path.exists(path):
            _check_mode(os.stat(path).st_mode, path)  # a socket
        _check_target(path)
        raise
    try:
        _check_mode(os.fstat(fd).st_mode, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_file(path: str) -> None:
    """Refuse what `open_file` refuses, for libraries that open files by themselves.

    Raises:
        FormatError: if it is no regular file, or not there.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        _check_target(path)
        raise FormatError(f"the file cannot be read: {error.strerror}", file=path) from None
    _check_mode(mode, path)


def _check_target(path: str) -> None:
    """Refuse a symbolic link to nothing: that no such file is there is hard to believe of a name that is listed."""
    if os.path.islink(path) and not os.path.exists(path):
        what = f"it is a symbolic link to {os.readlink(path)!r}, where no file is"
        raise FormatError(what, file=path, remedy="Put the file there, or remove the link.")


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder, or a link to one; its own method raises for a link to itself."""
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def _check_mode(mode: int, path: str) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise FormatError(f"it is no file, but {kind}", file=path, remedy="Remove it, or put a file in its place.")


class FileOptions(TypedDict, total=False):
    """The options that all sources of files have; `SourceFiles` says what they mean."""

    split: str | None
    follow_links: bool


class SourceFiles:
    """The files at a path.

    Args:
        path: a file or a folder, or files by a pattern of braces (``train-{000..127}.tar``). It may be a symbolic link
            itself: it is what the user has named.
        split: the split to take, where names of files or folders tell of several: of ``train-0.tar`` ``"train"``.
            ``"all"``: all are taken, as also where their names mean something else.
        follow_links: whether symbolic links may lead out of the folder.

    Raises:
        OptionError: if an option has no such value.
    """

    def __init__(self, path: str, *, split: str | None = None, follow_links: bool = False) -> None:
        if split is not None and not isinstance(split, str):
            raise OptionError(f"split is {split!r}, no name of a split")
        if not isinstance(follow_links, bool):
            raise OptionError(f"follow_links is {follow_links!r}", remedy="Supported are true and false.")
        self.path = path
        self.split = split
        self.follow_links = follow_links

    @classmethod
    def of(cls, path: str, options: FileOptions) -> SourceFiles:
        """The files at a path, by the options of a source, which may have others beside."""
        return cls(path, split=options.get("split"), follow_links=options.get("follow_links", False))

    def find(
        self, suffixes: Iterable[str], *, below: bool = True, folder: str | None = None, splits: bool = True,
        bad: bool = False,
    ) -> list[str]:  # fmt: skip
        """The files with one of these suffixes (``".tar"``), in natural order: the path itself, or those in it.

        Args:
            suffixes: how names end, in lower case.
            below: also those in folders below.
            folder: look here instead of at the path.
            splits: whether names may tell of splits here.
            bad: see `walk`.

        Raises:
            FormatError: if there is none, or one that must not be opened.
            OptionError: if there are several splits and none was asked for, or not the one that was.
        """
        wanted, path = tuple(suffixes), folder or self.path
        if folder is None and (files := expanded(path)):
            for file in files:
                check_file(file)
            return self.chosen(files, os.path.commonpath([os.path.dirname(absolute(file)) for file in files]))
        if not os.path.isdir(path):
            check_file(path)
            return self.chosen([path]) if splits else [path]
        found = list(self.walk(path, wanted, below=below, bad=bad))
        if not found:
            raise FormatError(f"there is no file with {' or '.join(wanted)}", file=path)
        return self.chosen(found, path) if splits else found

    def walk(self, folder: str, suffixes: tuple[str, ...], *, below: bool = True, bad: bool = False) -> Iterator[str]:
        """The files with these suffixes in a folder, and below it, one by one.

        Args:
            folder: where to look.
            suffixes: see `find`.
            below: see `find`.
            bad: also give what is no regular file. Where each file is a sample, it is a bad one: `open_file` says why.

        Raises:
            FormatError: as `find`.
        """
        for entry in self.entries(folder, below=below):
            if entry.name.lower().endswith(suffixes):
                if entry.is_symlink():
                    self.check_link(entry.path)
                if not bad and not entry.is_file(follow_symlinks=False):
                    check_file(entry.path)
                yield entry.path

    def entries(self, folder: str, *, below: bool = True) -> Iterator[os.DirEntry[str]]:
        """All in a folder that is no folder, and then what is below it, by name alone: a link may lead anywhere.

        Raises:
            FormatError: if a folder cannot be read, or a link to one leads out of the source.
        """
        try:
            with os.scandir(folder) as opened:
                entries = sorted(opened, key=lambda entry: natural(entry.name))
        except OSError as error:
            raise unreadable(folder, error) from None
        folders = []
        for entry in entries:
            if entry.name.startswith("._"):  # what macOS puts beside each file where it cannot keep its attributes
                continue
            if is_folder(entry):
                folders.append(entry)
            else:
                yield entry
        for entry in folders if below else []:
            # What is in a folder that a link stays in is found there.
            if not entry.is_symlink() or not (self.check_link(entry.path) or _returns(entry.path)):
                yield from self.entries(entry.path)

    def check_link(self, link: str) -> bool:
        """Refuse a symbolic link that leads out of the source, if that was not asked for.

        Returns:
            Whether it stays in the source.

        Raises:
            FormatError: naming the link, and where it leads.
        """
        return self._check_link(link, os.path.realpath(self.path))

    def _check_link(self, link: str, root: str) -> bool:
        """Refuse a link that leads out of a folder, if that was not asked for; whether it stays in it."""
        target = os.path.realpath(link)
        if os.path.commonpath([root, target]) == root:
            return True
        if not self.follow_links:
            raise FormatError(
                f"it is a symbolic link to {target!r}, which leads out of the folder {root!r}",
                file=link,
                remedy="If what is there belongs to the source, pass follow_links=True. "
                "Hugging Face's cache is made of such links.",
            )
        return False

    def inside(self, folder: str, name: str) -> str:
        """The path of a file that data name, if it is one in a folder or below it.

        Raises:
            FormatError: if the name leads elsewhere, by itself or by a link that must not be followed, or there is no
                regular file.
        """
        whole, root = absolute(folder or os.curdir), os.path.realpath(folder)
        try:
            path = os.path.join(whole, name)
            real = os.path.realpath(path)
            is_file = os.path.isfile(real)  # to open anything else may wait for ever
        except ValueError:  # a NUL, or a surrogate
            raise FormatError(f"{name!r:.200} is no name of a file", file=folder) from None
        if os.path.commonpath([root, real]) != root:
            if os.path.commonpath([whole, os.path.normpath(path)]) != whole:
                raise FormatError(f"{name!r:.200} leads out of the folder", file=folder)
            self._check_link(path, root)
        if not is_file:
            raise FormatError(f"there is no file {name!r:.200}", file=folder)
        return real

    def folder(self, *marks: str) -> str:
        """The folder that has one of some files: the path itself, or the folder in it that the split has.

        Raises:
            FormatError: if several folders have one.
            OptionError: as `find`.
        """
        if not os.path.isdir(self.path) or _has(self.path, marks):
            self.chosen([self.path])
            return self.path
        names = sorted(names_in(self.path), key=natural)
        folders = [folder for name in names if _has(folder := os.path.join(self.path, name), marks)]
        if len(folders) < (2 if self.split is None else self.split == ALL):
            return self.path
        found = self.chosen(folders, self.path)
        if len(found) > 1:
            raise FormatError(f"{len(found)} folders in it have {marks[0]}", file=self.path, remedy="Pass one of them.")
        if os.path.islink(found[0]):
            self.check_link(found[0])
        return found[0]

    def split_folders(self, folders: Sequence[str]) -> list[str] | None:
        """Those of some folders in one that are the split's; None if they are no splits."""
        if self.split == ALL or level_splits([os.path.basename(folder) for folder in folders]) is None:
            return None
        return self.chosen(folders, os.path.dirname(folders[0]))

    def chosen(self, paths: Sequence[str], root: str | None = None) -> list[str]:
        """Those of some paths that are the split's.

        Args:
            paths: files or folders.
            root: what they are in; None for a path that the user has named, whose name does not matter.

        Raises:
            OptionError: as `find`.
        """
        names = [] if root is None else [os.path.relpath(path, root) for path in paths]
        told = splits_of(names)
        listed = sorted({split for split in told if split is not None}, key=lambda split: (split != "train", split))
        if self.split == ALL or (self.split is None and not listed):
            return list(paths)
        if self.split is None:
            raise OptionError(
                f"it holds several splits: {', '.join(map(repr, listed))}",
                file=root,
                remedy=f"Pass split={listed[0]!r}, say, to convert one of them. split='all' takes "
                "all together, also where these names mean something else.",
            )
        # Where names tell of no several splits, all may still be of the one that is asked for.
        mine = [
            path
            for path, name, split in zip(paths, names, told, strict=bool(names))
            if split == self.split or (split is None and self.split in split_words(name))
        ]
        if not mine:
            there = f"There are {', '.join(map(repr, listed))}." if listed else "There are no splits: leave it out."
            raise OptionError(f"there is no split {self.split!r}", file=root or self.path, remedy=there)
        return mine


def _has(folder: str, marks: Iterable[str]) -> bool:
    return any(os.path.lexists(os.path.join(folder, mark)) for mark in marks)


def _returns(link: str) -> bool:
    """Whether a link leads back to a folder on its own way: to follow it would never end."""
    target, folder = os.path.realpath(link), os.path.dirname(link)
    while folder != os.path.dirname(folder):
        here = os.path.realpath(folder)
        if os.path.commonpath([target, here]) == target:
            return True
        folder = os.path.dirname(folder)
    return False
