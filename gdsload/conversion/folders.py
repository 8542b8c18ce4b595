"""Folders of a source: one rule for files that do not belong to the dataset, and one order of the others; patterns.

And tables with a log that says which rows of which files count: Delta, Iceberg and Hudi.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice

from gdsload.errors import FormatError, OptionError
from gdsload.shards.status import remedy_for
from gdsload.system.paths import natural

PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".ppm", ".pgm", ".pbm", ".pnm", ".bmp", ".tif", ".tiff")
"""Endings of the pictures that are read, as files or as members of tar files."""


_NAMES = frozenset({
    "__macosx", "__pycache__", "thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "temporary items",
    "network trash folder", "system volume information", "$recycle.bin", "lost+found", "~snapshot",
    "@eadir", "@recycle", "@recently-snapshot", "@tmp", "#recycle", "#snapshot",
    "_success", "_failure", "_metadata", "_common_metadata", "_spark_metadata", "_logs", "_delta_log", "_delta_index",
    "_change_data", "_symlink_format_manifest", "_impala_insert_staging",
})  # fmt: skip
"""Names, in lower case, that archives, NAS systems, Windows, Spark, Hive and Delta give to files beside data."""
_LOOKED_AT = 1000
_BEGINNINGS = (".", "~$", "_temporary", "_tmp", "_task_tmp", "_started", "_committed")
_ENDINGS = ("@synoeastream", "@synoresource")
_BRACES = re.compile(r"\{(?:(\d{1,12})\.\.(\d{1,12})|([^{},]*(?:,[^{},]*)+))\}", re.ASCII)
_MAX_EXPANDED = 1_000_000


def is_passed_over(name: str, *, tables: bool = False) -> bool:
    """Return whether all sources pass over a file or folder of this name.

    Such a file is hidden, or another program keeps it beside data. Any other name that begins with ``_`` may be that of
    a class or a sample. Only among tables it is passed over, as by Spark, Hive and Arrow, unless it is a column
    (``_x=1``).

    Args:
        name: the name of the file or folder alone.
        tables: whether it is among tables.
    """
    lower = name.lower()
    if lower in _NAMES or lower.startswith(_BEGINNINGS) or lower.endswith(_ENDINGS):
        return True
    return tables and name.startswith("_") and "=" not in name


def is_path_passed_over(path: str) -> bool:
    """Return whether a folder in an archive, or one above it there, is passed over."""
    return any(is_passed_over(piece) for piece in path.split("/") if piece not in ("", ".", ".."))


def entries_in(folder: str) -> list[os.DirEntry[str]]:
    """All entries of a folder, in natural order; a `FormatError` if it cannot be read."""
    try:
        with os.scandir(folder) as opened:
            return sorted(opened, key=lambda entry: natural(entry.name))
    except OSError as error:
        raise FormatError(
            f"the folder cannot be read: {error.strerror}", file=folder, remedy=remedy_for(error)
        ) from None


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder or a link to one, without the error of `is_dir` for a link to itself."""
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def names_in(folder: str) -> list[str]:
    """Names of the dataset's files and folders in a folder, in natural order; see `entries_in`."""
    return [entry.name for entry in entries_in(folder) if not is_passed_over(entry.name)]


def names_below(folder: str) -> Iterator[tuple[str, str]]:
    """Folder and name of each file of the dataset's in and below a folder, not through links; see `entries_in`."""
    folders = []
    for entry in entries_in(folder):
        if is_passed_over(entry.name):
            continue
        if entry.is_dir(follow_symlinks=False):
            folders.append(entry.path)
        elif not is_folder(entry):
            yield folder, entry.name
    for below in folders:
        yield from names_below(below)


def first_below(folder: str, suffixes: tuple[str, ...]) -> str | None:
    """The path from a folder to the first file with these suffixes in folders below it, if it is soon found."""
    if not suffixes or not os.path.isdir(folder):
        return None
    with suppress(FormatError):
        below = (one for one in names_below(folder) if one[0] != folder)
        for place, name in islice(below, _LOOKED_AT):
            if name.lower().endswith(suffixes):
                return os.path.relpath(os.path.join(place, name), folder)
    return None


def leads_back(link: str) -> bool:
    """Return whether a link leads to a folder that contains it: following it would never end."""
    target, folder = os.path.realpath(link), os.path.dirname(link)
    while folder != os.path.dirname(folder):
        here = os.path.realpath(folder)
        if os.path.commonpath([target, here]) == target:
            return True
        folder = os.path.dirname(folder)
    return False


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


_LOGS = {"_delta_log": "a Delta", ".hoodie": "a Hudi"}
_ICEBERG = "metadata"
_STATES = (".metadata.json", ".metadata.json.gz")
_STATE = re.compile(r"v\d+\.|\d+-", re.ASCII)


def refuse_logged(folder: str) -> None:
    """Refuse a folder that is such a table: its files hold removed rows, too, and some rows twice.

    Raises:
        FormatError: if it is one.
    """
    found = {mark: kind for mark, kind in _LOGS.items() if os.path.lexists(os.path.join(folder, mark))}
    states = []
    with suppress(OSError):  # in most folders there is none
        states = [name for name in os.listdir(os.path.join(folder, _ICEBERG)) if name.endswith(_STATES)]
    if any(map(_STATE.match, states)) or (states and os.path.isdir(os.path.join(folder, "data"))):
        found[_ICEBERG] = "an Iceberg"
    if found:
        mark, kind = next(iter(found.items()))
        raise FormatError(
            f"it is {kind} table: `{mark}` says which rows of its files count, and these are not all",
            file=folder,
            remedy="Read it by its own library (deltalake, hudi, pyiceberg), and pass the Arrow table that this gives "
            "to gdsload.convert.",
        )
