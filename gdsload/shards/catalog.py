"""The catalog of a path: the shards of a dataset, found by opening as few of them as possible.

A folder with `index.json` is read from that alone. A folder or file without is read from the headers of its files.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from gdsload.errors import DatasetNotFoundError, FormatError, GdsloadError, Problem, ReadError, UnfinishedDatasetError
from gdsload.shards.format.index import INDEX_NAME, MAX_INDEX_BYTES, Index, parse_index
from gdsload.shards.format.metadata import Metadata
from gdsload.shards.format.schema import Schema
from gdsload.shards.format.shard import Shard, is_gdsload
from gdsload.shards.format.stored import StoredSchema
from gdsload.shards.identity import FileIdentity, ShardSource, identity_of
from gdsload.shards.local_files import open_regular, pread_exact
from gdsload.shards.opening import load_shard, wrong_length
from gdsload.shards.shard_folders import link_target
from gdsload.shards.status import NO_DESCRIPTORS, close, is_absent, read_error, status_of
from gdsload.system.paths import absolute, natural, refuse_no_path

SHARD_SUFFIX = ".safetensors"
_LOOKED_AT = 1000
"""Names in a folder that are looked at for a hint."""
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Catalog:
    """The shards of a dataset.

    Attributes:
        path: where it is.
        stored: the fields of a sample, and how they are stored.
        sources: its shards, in order, each with its number of samples and length.
        digest: SHA-256 that names the content.
        metadata: the metadata of the dataset.
    """

    path: str
    stored: StoredSchema
    sources: tuple[ShardSource, ...]
    digest: str
    metadata: Metadata = field(default_factory=dict)

    @property
    def schema(self) -> Schema:
        """The fields of a sample."""
        return self.stored.schema

    @property
    def samples(self) -> int:
        """Number of samples."""
        return sum(source.samples for source in self.sources)

    @property
    def num_bytes(self) -> int:
        """Bytes of all shard files."""
        return sum(source.file_bytes for source in self.sources)


def open_catalog(path: str, *, whole: bool = True) -> Catalog:
    """Find out what is at `path`; see `ShardDataset` for what may be there.

    Links in the path are followed now: a link that is changed later does not change this dataset.

    Args:
        path: where it is.
        whole: refuse a dataset of which a shard is missing, cut short or unreadable. Otherwise such a shard is among
            the sources, as the index describes it: `verify_shards` looks at all of them.

    Raises:
        OptionError: if it is empty, or an address.
        DatasetNotFoundError: if there is nothing.
        ReadError: if the system does not answer, or too many files are open.
        UnfinishedDatasetError: if there are gdsload shards without an index.
        FormatError: if something is damaged; where `whole` is false, only if not one shard says what the fields are.
    """
    refuse_no_path(path)
    with _looking(path):
        mode = os.stat(path).st_mode
    given, path = path, absolute(path)
    if not stat.S_ISDIR(mode):
        try:
            return _from_files(path, [path], alone=True, whole=whole)
        except FormatError as error:
            if not path.endswith(SHARD_SUFFIX):
                error.remedy = _to_convert(given)
            raise
    with _looking(path):
        if os.path.lexists(os.path.join(path, INDEX_NAME)):
            return _from_index(path, whole=whole)
        names = os.listdir(path)
    # Hidden ones are copies half made, and what macOS puts beside each file.
    files = [name for name in names if name.endswith(SHARD_SUFFIX) and not name.startswith(".")]
    if not files:
        raise DatasetNotFoundError(
            f"the folder holds neither {INDEX_NAME} nor {SHARD_SUFFIX} files",
            file=path,
            remedy=_datasets_in(path, "")
            or (_to_convert(given) if names else "Pass the folder that ShardWriter wrote."),
        )
    paths = [os.path.join(path, name) for name in sorted(files, key=natural)]
    return _from_files(path, paths, alone=False, whole=whole)


@contextmanager
def _looking(path: str) -> Iterator[None]:
    """A context in which the system's errors are those of looking at a dataset."""
    try:
        yield
    except GdsloadError:
        raise
    except (OSError, MemoryError) as error:
        if isinstance(error, OSError) and is_absent(error):
            message = f"there is no dataset here: {error.strerror}"
            raise DatasetNotFoundError(message, file=path, remedy=_beside(path)) from None
        raise read_error("the dataset cannot be looked at", error, path) from None


def _beside(path: str) -> str:
    """The remedy for a path where nothing is: the datasets in its folder."""
    folder, name = os.path.split(absolute(path).rstrip("/"))
    return _datasets_in(folder, name) or "Pass a folder that `gdsload convert` or ShardWriter wrote."


def _datasets_in(folder: str, name: str) -> str:
    """The datasets in a folder as a sentence, those of names like `name` first; empty if there are none."""
    found: list[str] = []
    with suppress(OSError):
        names = sorted(os.listdir(folder))[:_LOOKED_AT]
        found += [
            one for one in names
            if one.endswith(SHARD_SUFFIX) or os.path.lexists(os.path.join(folder, one, INDEX_NAME))
        ]  # fmt: skip
    if not found:
        return ""
    found.sort(key=lambda one: -SequenceMatcher(None, name, one).ratio())
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    are = "is the dataset" if len(found) == 1 else "are the datasets"
    return f"In {folder} {are} {', '.join(found[:_NAMED])}{more}."


def _to_convert(path: str) -> str:
    """The remedy for a path of anything but shards."""
    return f"Pass what `gdsload convert {shlex.quote(path)} shards/` makes of it, or a folder that ShardWriter wrote."


def _from_index(path: str, *, whole: bool) -> Catalog:
    while True:
        real = os.path.realpath(path)
        folder = os.open(real, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _from_folder(path, folder, real, whole=whole)
        except (GdsloadError, OSError):
            # A writer that replaces the dataset may remove the old one while it is read here.
            if _is_at(path, folder):
                raise
        finally:
            close(folder)


def _is_at(path: str, folder: int) -> bool:
    """Return whether an open folder is still the one at a path."""
    opened = status_of(folder, path)
    try:
        return os.path.samestat(os.stat(path), opened)
    except OSError:
        return False


def _from_folder(path: str, folder: int, real: str, *, whole: bool) -> Catalog:
    """The dataset in an open folder, even if another one is moved to its place meanwhile.

    Args:
        path: where it is, as errors name it.
        folder: a descriptor of it.
        real: its path without links.
        whole: see `open_catalog`.
    """
    name = os.path.join(path, INDEX_NAME)
    fd = open_regular(name, follow_links=False, folder=folder)
    try:
        size = status_of(fd, name).st_size
        if size > MAX_INDEX_BYTES:
            problem = Problem(f"it has {size} bytes; the most is {MAX_INDEX_BYTES}", name, 0)
            raise FormatError("no valid index of a dataset", problems=[problem], file=name)
        raw = bytearray(size)
        pread_exact(fd, memoryview(raw), 0, name)
    finally:
        close(fd)
    index = parse_index(bytes(raw), name)
    found, links, astray = _status(folder, index)
    if whole:
        _check_present(path, found, astray, index)
    sources = tuple(
        ShardSource(
            os.path.join(real, shard.file),
            shard.samples,
            shard.bytes,
            shard.sha256,
            follow_links=shard.file in links,
            identity=identity_of(found[shard.file]) if shard.file in found else None,
        )
        for shard in index.shards
    )
    return Catalog(path, index.stored, sources, index.digest(), index.metadata)


def _status(folder: int, index: Index) -> tuple[dict[str, os.stat_result], set[str], dict[str, str]]:
    """The status of the shards that are there, the names of those that are links, and the faults of other links.

    The file that a link leads to is looked at here, and compared when the link is followed later.
    """
    wanted = {shard.file for shard in index.shards}
    found: dict[str, os.stat_result] = {}
    links: set[str] = set()
    astray: dict[str, str] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name not in wanted:
                continue
            if not entry.is_symlink():
                found[entry.name] = entry.stat(follow_symlinks=False)
                continue
            try:
                found[entry.name] = os.stat(link_target(folder, entry.name), follow_symlinks=False)
                links.add(entry.name)
            except ReadError as error:
                astray[entry.name] = f"the shard is {error.message}. {error.remedy}"
    return found, links, astray


def _check_present(path: str, found: dict[str, os.stat_result], astray: dict[str, str], index: Index) -> None:
    """A shard that is missing should be noticed now, not hours into a training run."""
    problems = []
    first = 0
    for shard in index.shards:
        status, file, samples = found.get(shard.file), os.path.join(path, shard.file), (first, first + shard.samples)
        if status is None:
            problems.append(Problem(astray.get(shard.file, "the shard is missing"), file, samples=samples))
        elif not stat.S_ISREG(status.st_mode):
            problems.append(Problem("the shard is no regular file", file, samples=samples))
        elif problem := wrong_length(file, status.st_size, shard.bytes, samples):
            problems.append(problem)
        first += shard.samples
    if problems:
        raise FormatError(
            f"{len(problems)} of {len(index.shards)} shards are missing or of another length",
            file=path,
            problems=problems,
            remedy="Mount the drives that links lead to, or copy the dataset again, whole. `gdsload verify` also says "
            "what is wrong with the other shards.",
        )


def _from_files(path: str, names: list[str], *, alone: bool, whole: bool) -> Catalog:
    sources: list[ShardSource] = []
    problems: list[Problem] = []
    stored: StoredSchema | None = None
    ours = []
    place = os.path.realpath(path)
    for name in names:
        real = place if alone else os.path.join(place, os.path.basename(name))
        try:
            shard, identity = _read(name)
        except (DatasetNotFoundError, FormatError, ReadError) as error:
            if isinstance(error, ReadError) and error.errno in NO_DESCRIPTORS:
                raise  # which says nothing of the file
            if whole and not isinstance(error, FormatError):
                raise
            problems.extend(error.problems if isinstance(error, FormatError) else [Problem(error.message, name)])
            sources.append(ShardSource(real))
            continue
        if is_gdsload(shard.header):
            ours.append(name)
        stored = stored or shard.stored
        if shard.stored != stored:
            problems.append(Problem(f"its fields are {shard.stored}, but those of {names[0]} are {stored}", name))
        sources.append(ShardSource(real, shard.samples, shard.header.file_bytes, shard.header.sha256, True, identity))
    if ours and not alone:
        raise UnfinishedDatasetError(
            f"the folder holds {len(ours)} gdsload shards, but no {INDEX_NAME}: its writer never finished, "
            "or the index was lost",
            file=path,
            remedy="Write the dataset again. A single shard can be opened by its own path.",
        )
    if (problems and whole) or stored is None:
        raise FormatError("the files cannot be read as one dataset", file=path, problems=problems)
    return Catalog(path, stored, tuple(sources), _digest(names, sources))


def _read(name: str) -> tuple[Shard, FileIdentity]:
    fd = open_regular(name)
    try:
        identity = identity_of(status_of(fd, name))
        return load_shard(fd, name), identity
    finally:
        close(fd)


def _digest(names: list[str], sources: list[ShardSource]) -> str:
    """Names, lengths and headers: safetensors files that gdsload did not write have no checksums of their data."""
    found = hashlib.sha256()
    for name, source in zip(names, sources, strict=True):
        line = f"{os.path.basename(name)}\0{source.file_bytes}\0{source.sha256}\n"
        found.update(line.encode("utf-8", "surrogateescape"))
    return found.hexdigest()
