"""Sources of samples: the protocol by which a source names its parts and reads them one by one, in any process.

A part is a piece of work that is the same in any process: a file of an archive, a range of rows. The samples of a part
come in order, and the parts are put together in order, so that the result does not depend on the number of workers.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from gdsload.errors import FileChangedError, OptionError


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a source. It is JSON-able and picklable.

    Attributes:
        name: what it is, for people: a file's name, or that and a range.
        where: what the source needs to find it; strings and whole numbers.
        samples: how many samples it has, or -1 if that is only known once it is read.
        nbytes: about how many bytes they have, or -1.
        made_of: how many samples of another source they are made of, as blocks are of documents; -1: of none.
    """

    name: str
    where: tuple[str | int, ...]
    samples: int = -1
    nbytes: int = -1
    made_of: int = -1


@dataclass(frozen=True, slots=True)
class Item:
    """One sample, or many at once, that is made when it is asked for.

    Attributes:
        key: where it comes from, for errors and reports: a file's name, a row's number.
        make: makes the sample, a mapping from field names to values as `ShardWriter.write` takes them. Its errors are
            faults of that sample alone.
        count: None for one sample; a number if `make` gives a batch of as many, as `ShardWriter.write_batch` takes
            them.
    """

    key: str
    make: Callable[[], Mapping[str, Any]]
    count: int | None = None


class Source(Protocol):
    """A source of samples. It is picklable: other processes read its parts.

    It may have the methods `metadata`, which returns its part of the dataset's metadata; `notes`, which returns
    sentences on it that no error says; and `only`, which returns a source of some fields alone: faults of others do not
    matter then, and its `parts` raise an `OptionError` if it lacks one of them. `crashes` is True if a damaged file may
    end the process that reads it.
    """

    kind: str
    """Its name for people: "image folder", "WebDataset tar files"."""

    threads: bool
    """True if its samples are made without the interpreter lock, and by no library that a damaged file may crash: then
    threads do as well as processes."""

    def describe(self) -> dict[str, Any]:
        """All that the result depends on, JSON-able: files with lengths and times, options. Equal: the same samples."""

    def parts(self, target_bytes: int) -> list[Part]:
        """The parts, in order; where it can be chosen, of about `target_bytes` each.

        Raises:
            FormatError: if there is nothing to read, or it is damaged.
        """

    def read(self, part: Part) -> Iterator[Item]:
        """The samples of a part, in order.

        Raises:
            FormatError: if the part itself cannot be read.
        """


class ExactParts:
    """Base of sources whose parts become shards as they are: they know each sample's bytes and cut as a writer does."""


class OfDocuments:
    """Base of sources that can give documents of tokens to pack, where their samples may be the tokens themselves."""

    each: str | None = None
    """``"token"``, ``"document"``, or None: what its files tell."""

    def documents(self) -> Self:
        """The same source, whose samples are documents."""
        found = copy.copy(self)
        found.each = "document"
        return found

    def check_shuffle(self) -> None:
        """Refuse by an `OptionError` to write the samples in random order, if they are tokens."""


class FieldChoice:
    """Base of sources that have `only`: they read `fields`, None for all of them.

    A source keeps what its first samples show in attributes that begin with `_known`, until other fields are chosen.
    """

    fields: tuple[str, ...] | None = None
    _known: Any = None

    def only(self, fields: Sequence[str]) -> Self:
        found = copy.copy(self)
        found.fields = tuple(fields)
        for name in [name for name in found.__dict__ if name.startswith("_known")]:
            del found.__dict__[name]
        return found


def path_of(source: Source) -> str | None:
    """The path of a source; None if it is not made of one."""
    found = getattr(source, "path", None)
    return found if isinstance(found, str) else None


def may_crash(source: Source) -> bool:
    """Return whether a damaged file may end the process that reads it: then another one does, also of one worker."""
    return bool(getattr(source, "crashes", False))


def taking(source: Source, fields: Sequence[str] | None) -> Source:
    """A source of these fields alone, if it can leave others out; None: of all of them."""
    only: Callable[[Sequence[str]], Source] | None = getattr(source, "only", None)
    return source if fields is None or only is None else only(tuple(fields))


class SourceSnapshot:
    """A source as it is now."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.description = self._describe()

    def _describe(self) -> Any:
        return json.loads(json.dumps(self.source.describe()))

    def check(self) -> None:
        """Raise a `FileChangedError` if the source has changed."""
        file = path_of(self.source)
        try:
            same = self._describe() == self.description
        except FileNotFoundError as error:
            file, same = str(error.filename), False
        if not same:
            raise FileChangedError(
                "the source has changed since its conversion began: the result would be of two states of it",
                file=file,
                remedy="Run it again when nothing changes the source any more, with `restart=True`: the "
                "parts that are finished may be of the old state.",
            )


def refuse_inside(source: Source, out: str, targets: Iterable[str]) -> None:
    """Refuse to write into the folder of a source: the next conversion would take the shards for a part of it.

    The folder itself is allowed as `out`: a dataset may take the place of its source. Shards get a folder in each of
    the `targets`.

    Raises:
        OptionError: if one is below the folder of the source.
    """
    path = path_of(source)
    if path is None or not os.path.isdir(path):
        return
    folder = os.path.realpath(path)
    for place in (out, *(os.path.join(target, "shards") for target in targets)):
        if os.path.realpath(place).startswith(os.path.join(folder, "")):
            raise OptionError(
                f"it is in the folder of the source, {path}: the next conversion of that would take the shards for "
                "samples, or for a class",
                file=place,
                remedy="Write to a folder beside that of the source.",
            )
