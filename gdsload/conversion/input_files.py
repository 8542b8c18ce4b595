"""Files of a source: their names, the check that they may be opened, and stamps that show changes.

Every source whose samples are in files has these from a `SourceFiles`. So it holds for all kinds that a split is never
merged with another one in silence, that no name and no link leads out of the source's folder unless that is asked for,
and that nothing is opened but regular files: a pipe would be waited on for ever.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import IO, Any, ClassVar, TypedDict, Unpack

from gdsload.conversion.folders import (
    entries_in,
    expanded,
    first_below,
    is_folder,
    is_passed_over,
    leads_back,
    names_in,
    refuse_logged,
)
from gdsload.conversion.splits import ALL, level_splits, no_such_split, split_words, splits_of
from gdsload.errors import FormatError
from gdsload.shards.status import remedy_for
from gdsload.system.paths import absolute

Stamp = list[str | int]
_LOGGED = ".parquet"
_TABLES = frozenset(
    ending + packed
    for ending in (_LOGGED, ".arrow", ".feather", ".csv", ".tsv", ".jsonl", ".ndjson")
    for packed in ("", ".gz")
)


def stamps(files: Iterable[str]) -> list[Stamp]:
    """Name, length, and times of the last change of content and of anything of each file, JSON-able.

    The second of these times cannot be set back, and a file that replaces another one has its own. Numbers of devices
    and inodes are left out: on network file systems they change by themselves. Of a symbolic link that leads to nothing
    they are its own: its source says so.
    """
    found: list[Stamp] = []
    for file in files:
        try:
            status = os.stat(file)
        except OSError:
            status = os.lstat(file)
        found.append([file, status.st_size, status.st_mtime_ns, status.st_ctime_ns])
    return found


def digest_of(found: Iterable[object]) -> str:
    """The checksum of stamps that are too many to be kept."""
    digest = hashlib.sha256()
    for one in found:
        digest.update(json.dumps(one).encode())
    return digest.hexdigest()


def open_file(path: str) -> IO[bytes]:
    """Open a file for reading.

    Raises:
        FormatError: if it is a symbolic link to nothing, or no regular file: a pipe would be waited on for ever.
        OSError: if it cannot be opened.
    """
    return open(path, "rb", opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    try:
        fd = os.open(path, flags | os.O_NONBLOCK)
    except OSError:
        if os.path.lexists(path):
            check_file(path)  # a socket, or a link to nothing
        raise
    try:
        _check_mode(os.fstat(fd).st_mode, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_file(path: str) -> None:
    """Refuse by a `FormatError` what `open_file` refuses, or is not there, for libraries that open it themselves."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        if not os.path.islink(path):
            what = f"the file cannot be read: {error.strerror}"
            raise FormatError(what, file=path, remedy=remedy_for(error)) from None
        what = f"it is a symbolic link to {os.readlink(path)!r}, where no file is"  # it is listed all the same
        raise FormatError(what, file=path, remedy="Put the file there, or remove the link.") from None
    _check_mode(mode, path)


def _check_mode(mode: int, path: str) -> None:
    if not stat.S_ISREG(mode):
        raise FormatError("it is no regular file", file=path, remedy="Remove it, or put a file in its place.")


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
    """

    def __init__(self, path: str, *, split: str | None = None, follow_links: bool = False) -> None:
        self.path = path
        self.split = split
        self.follow_links = follow_links
        self._left: set[str] = set()
        self._not_below: tuple[str, ...] = ()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_left": set()}

    @classmethod
    def of(cls, path: str, options: FileOptions) -> SourceFiles:
        """The files at a path, by the options of a source."""
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
        self._not_below = self._not_below if below or folder else wanted
        if folder is None and (files := expanded(path)):
            for file in files:
                check_file(file)
            _refuse_logged(files, wanted)
            return self.chosen(files, os.path.commonpath([os.path.dirname(absolute(file)) for file in files]))
        if not os.path.isdir(path):
            check_file(path)
            _refuse_logged([path], wanted)
            return self.chosen([path]) if splits else [path]
        found = list(self.walk(path, wanted, below=below, bad=bad))
        if not found:
            remedy = " ".join([*notes, "A path that you name is always taken."]) if (notes := self.notes()) else None
            raise FormatError(f"there is no file with {' or '.join(wanted)}", file=path, remedy=remedy)
        _refuse_logged(found, wanted)
        return self.chosen(found, path) if splits else found

    def walk(
        self, folder: str, suffixes: tuple[str, ...], *, below: bool = True, bad: bool = False, whole: bool = False
    ) -> Iterator[str]:
        """The files with these suffixes in a folder, and below it, one by one.

        Args:
            folder: where to look.
            suffixes: see `find`.
            below: see `find`.
            bad: also give what is no regular file. Where each file is a sample, it is a bad one: `open_file` says why.
            whole: pass nothing over: all in the folder is the dataset's.

        Raises:
            FormatError: as `find`.
        """
        for entry in self.entries(folder, suffixes, below=below, whole=whole):
            if entry.name.lower().endswith(suffixes):
                if entry.is_symlink():
                    self.check_link(entry.path)
                if not bad and not entry.is_file(follow_symlinks=False):
                    check_file(entry.path)
                yield entry.path

    def folders(self, folder: str) -> list[str]:
        """The folders of the dataset's in a folder; raises as `entries`."""
        found = [entry for entry in entries_in(folder) if is_folder(entry)]
        self._left.update(entry.path for entry in found if is_passed_over(entry.name))
        found = [entry for entry in found if not is_passed_over(entry.name)]
        for entry in found:
            if entry.is_symlink():
                self.check_link(entry.path)
        return [entry.path for entry in found]

    def pass_over(self, members: Iterable[str]) -> None:
        """Note that these members of the path, an archive, are passed over."""
        self._left.update(os.path.join(self.path, name) for name in members)

    def notes(self) -> list[str]:
        """Notes for users: on files in folders that are not looked into, and on what is passed over."""
        below = first_below(self.path, self._not_below)
        found = [] if below is None else [f"Files in folders below are left out: {below!r:.200} first."]
        if not self._left:
            return found
        count = f"{len(self._left)} files or folders are" if len(self._left) > 1 else "1 file or folder is"
        first = os.path.relpath(min(self._left), self.path)
        return [*found, f"{count} passed over, hidden or kept by other programs beside data: {first!r:.200} first."]

    def entries(
        self, folder: str, suffixes: tuple[str, ...] = (), *, below: bool = True, whole: bool = False
    ) -> Iterator[os.DirEntry[str]]:
        """All files of the dataset's in a folder, and then below it, by name alone: a link may lead anywhere.

        Folders that are passed over are noted, and so are files with these suffixes.

        Raises:
            FormatError: if a folder cannot be read, or a link to one leads out of the source.
        """
        folders, tables = [], bool(suffixes) and _TABLES.issuperset(suffixes)
        for entry in entries_in(folder):
            inner = is_folder(entry)
            if not whole and is_passed_over(entry.name, tables=tables):
                if below if inner else suffixes and entry.name.lower().endswith(suffixes):
                    self._left.add(entry.path)
            elif inner:
                folders.append(entry)
            else:
                yield entry
        for entry in folders if below else []:
            if not entry.is_symlink() or not (self._found_elsewhere(entry.path) or leads_back(entry.path)):
                yield from self.entries(entry.path, suffixes, whole=whole)

    def _found_elsewhere(self, link: str) -> bool:
        """Return whether the files of a folder that a link leads to are found without the link."""
        if not self.check_link(link):
            return False
        inner = os.path.relpath(os.path.realpath(link), os.path.realpath(self.path))
        return not any(map(is_passed_over, inner.split(os.sep)))

    def check_link(self, link: str, folder: str | None = None) -> bool:
        """Return whether a symbolic link stays in a folder, the source's by default.

        Raises:
            FormatError: if it leads out of the folder, and that was not asked for: with the link, and where it leads.
        """
        root, target = os.path.realpath(folder or self.path), os.path.realpath(link)
        if os.path.commonpath([root, target]) == root:
            return True
        if not self.follow_links:
            raise FormatError(
                f"it is a symbolic link to {target!r}, which leads out of the folder {root!r}",
                file=link,
                remedy="If what is there belongs to the source, pass `follow_links=True`. "
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
            self.check_link(path, root)
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
        folders = [folder for name in names_in(self.path) if _has(folder := os.path.join(self.path, name), marks)]
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
        splits = splits_of(names)
        listed = sorted({split for split in splits if split is not None}, key=lambda split: (split != "train", split))
        if self.split == ALL or (self.split is None and not listed):
            return list(paths)
        if self.split is None:
            raise no_such_split(None, listed, root)
        # Where names tell of no several splits, all may still be of the one that is asked for.
        mine = [
            path
            for path, name, split in zip(paths, names, splits, strict=bool(names))
            if split == self.split or (split is None and self.split in split_words(name))
        ]
        if not mine:
            raise no_such_split(self.split, listed, root or self.path)
        return mine


class FileSource:
    """Base of sources of files.

    Attributes:
        kind: see `Source.kind`.
        suffixes: how the names of its files end, in lower case.
        decisive: the options that its samples depend on, which it has as attributes.
        path: where the files are.
        files: the files there.
    """

    kind: str
    suffixes: ClassVar[tuple[str, ...]] = ()
    decisive: ClassVar[tuple[str, ...]] = ()

    def __init__(self, path: str, **files: Unpack[FileOptions]) -> None:
        self.path = path
        self.files = SourceFiles(path, **files)

    def all_files(self) -> list[str]:
        """The files, in order; raises as `SourceFiles.find`."""
        return self.files.find(self.suffixes)

    def describe(self) -> dict[str, Any]:
        options = {name: getattr(self, name) for name in self.decisive}
        return {"kind": self.kind, "files": stamps(self.all_files()), **options}


def _refuse_logged(files: Sequence[str], suffixes: Sequence[str]) -> None:
    """Refuse files of a table with a log, which is beside them or above their folders; see `refuse_logged`."""
    if _LOGGED in suffixes:
        folders = {os.path.dirname(absolute(file)) for file in files}
        folders |= {os.path.dirname(os.path.realpath(file)) for file in files if os.path.islink(file)}
        folders |= set(map(os.path.realpath, folders))
        for above in sorted({one for folder in folders for one in (folder, *map(str, PurePosixPath(folder).parents))}):
            refuse_logged(above)


def _has(folder: str, marks: Iterable[str]) -> bool:
    return any(os.path.lexists(os.path.join(folder, mark)) for mark in marks)
