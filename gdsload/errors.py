"""Every exception gdsload raises, in one tree.

    GdsloadError
    ├── OptionError (ValueError)              an argument that cannot be used
    │   └── BudgetError                       a byte budget too small for what was asked
    ├── SchemaError (ValueError)              a sample that does not fit the schema, or a schema that cannot be stored
    ├── FormatError (ValueError)              a file or dataset that is damaged, hostile or unfinished; see `.problems`
    │   ├── ChecksumError                     bytes that differ from what was written
    │   └── UnfinishedDatasetError            shards without a valid index: the writer never finished
    ├── DatasetNotFoundError (FileNotFoundError)
    ├── DatasetExistsError (FileExistsError)
    ├── SampleIndexError (IndexError)         dataset[i] outside the dataset
    ├── ReadError (OSError)                   bytes could not be read
    │   ├── ConversionError                   samples that cannot be converted; see `.skipped`
    │   ├── ShortReadError                    the file ended before the bytes did
    │   └── FileChangedError                  the file is not the one that was opened
    ├── WriteError (OSError)                  bytes could not be written
    │   └── DiskFullError                     no room
    ├── BackendUnavailableError (RuntimeError)
    ├── StateError (ValueError)               a state that cannot be resumed here
    └── LoaderClosedError (RuntimeError)

An error says what happened, where (file, field, offset), why (`cause`), and what to do (`remedy`). `option` names the
option that is wrong. Options in a text are in backticks, as Python writes them: `fields=['a', 'b']`; commands show them
as they are typed. All errors are picklable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TypedDict, Unpack

__all__ = [
    "BackendUnavailableError",
    "BudgetError",
    "ChecksumError",
    "ConversionError",
    "DatasetExistsError",
    "DatasetNotFoundError",
    "DiskFullError",
    "FileChangedError",
    "FormatError",
    "GdsloadError",
    "LoaderClosedError",
    "OptionError",
    "Problem",
    "ReadError",
    "SampleIndexError",
    "SchemaError",
    "ShortReadError",
    "Skipped",
    "StateError",
    "UnfinishedDatasetError",
    "WriteError",
]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a file.

    Attributes:
        message: what is wrong, and what was expected.
        file: the file it is wrong in.
        offset: byte offset in that file, where one can be named.
        field: name of the field or tensor, where one can be named.
        samples: half-open range of the samples that it spoils, as the dataset counts them, where known.
        nbytes: how many bytes are wrong from that offset on, where known.
    """

    message: str
    file: str | None = None
    offset: int | None = None
    field: str | None = None
    samples: tuple[int, int] | None = None
    nbytes: int | None = None

    def __str__(self) -> str:
        where = _where(self.file, self.field, self.offset, self.nbytes)
        spoiled = "" if self.samples is None else f" (samples {self.samples[0]} to {self.samples[1] - 1})"
        return f"{where}: {self.message}{spoiled}" if where else f"{self.message}{spoiled}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample that could not be converted.

    Attributes:
        key: where it comes from, for people: a file's name, a row's number.
        reason: why it could not; an error of other code has its class before its text.
    """

    key: str
    reason: str


def _where(file: str | None, field: str | None, offset: int | None, nbytes: int | None = None) -> str:
    parts = []
    if file is not None:
        parts.append(file)
    if field is not None:
        parts.append(f"field {field!r}" if len(field) <= 200 else f"field {field[:200]!r}…")
    if offset is not None:
        parts.append(f"bytes {offset} to {offset + nbytes - 1}" if nbytes and nbytes > 1 else f"byte {offset}")
    return ", ".join(parts)


class _About(TypedDict, total=False):
    """The arguments of `GdsloadError` that errors with further ones take, too."""

    file: str | None
    field: str | None
    offset: int | None
    cause: str | None
    remedy: str | None


class GdsloadError(Exception):
    """Base of all gdsload errors.

    Args:
        message: what happened and why.
        file: the file concerned.
        field: the field concerned.
        offset: byte offset in the file.
        option: the option that is wrong, which the message then goes on from: "is 0, but must be at least 1".
        cause: the text of another error that led to this one.
        remedy: what to do about it.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        field: str | None = None,
        offset: int | None = None,
        option: str | None = None,
        cause: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.message = f"{option} {message}" if option else message
        super().__init__(self.message)
        self.option = option
        self.cause = cause
        self.file = file
        self.field = field
        self.offset = offset
        self.remedy = remedy

    def within(self, file: str) -> Self:
        """The same error, which from now on names this file, if it named none."""
        self.file = file if self.file is None else self.file
        return self

    @property
    def where(self) -> str:
        """File, field and offset in one line; empty if there is none of them."""
        return _where(self.file, self.field, self.offset)

    def __str__(self) -> str:
        text = ": ".join(part for part in (self.where, self.message, self.cause) if part)
        return f"{text.removesuffix('.')}. {self.remedy}" if self.remedy else text

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message), {**self.__dict__, **_errno_of(self)}


def _errno_of(error: GdsloadError) -> dict[str, int | None]:
    """The system's number of an error that has one, which is in no dict."""
    return {"errno": error.errno} if isinstance(error, OSError) else {}


def _rebuild(kind: type[GdsloadError], message: str) -> GdsloadError:
    """Make an empty error of `kind`; pickle then restores its attributes."""
    error = kind.__new__(kind, message)
    error.args = (message,)
    return error


class OptionError(GdsloadError, ValueError):
    """An argument that cannot be used."""


class BudgetError(OptionError):
    """A byte budget too small for what was asked of it."""


class SchemaError(GdsloadError, ValueError):
    """A sample that does not fit the schema, or a schema that cannot be stored."""


class FormatError(GdsloadError, ValueError):
    """A file or dataset that is damaged, hostile or not what it claims to be.

    `problems` lists everything that is wrong, not only the first thing found.
    """

    def __init__(self, message: str, *, problems: Sequence[Problem] = (), **about: Unpack[_About]) -> None:
        super().__init__(message, **about)
        self.problems = tuple(problems)

    @property
    def samples(self) -> tuple[tuple[int, int], ...]:
        """All samples that are spoiled, as far as known: half-open ranges, in order, none of which meet."""
        found: list[tuple[int, int]] = []
        for low, high in sorted(problem.samples for problem in self.problems if problem.samples is not None):
            if found and low <= found[-1][1]:
                found[-1] = found[-1][0], max(high, found[-1][1])
            else:
                found.append((low, high))
        return tuple(found)

    def __str__(self) -> str:
        lines = [super().__str__()]
        shown = self.problems[:20]
        lines += [f"  - {problem}" for problem in shown]
        if len(self.problems) > len(shown):
            lines.append(f"  - and {len(self.problems) - len(shown)} more in .problems")
        return "\n".join(lines)


class ChecksumError(FormatError):
    """Bytes that differ from what the writer wrote."""


class UnfinishedDatasetError(FormatError):
    """A folder with gdsload shards but no valid index: its writer never finished."""


class DatasetNotFoundError(GdsloadError, FileNotFoundError):
    """There is no dataset at this path."""


class DatasetExistsError(GdsloadError, FileExistsError):
    """There is something at the path already, and overwriting was not asked for."""


class SampleIndexError(GdsloadError, IndexError):
    """A sample index outside the dataset."""


class ReadError(GdsloadError, OSError):
    """Bytes could not be read."""


class ConversionError(ReadError):
    """A sample that cannot be converted where that is to stop the conversion, or more of them than may be skipped.

    `skipped` lists those that were skipped until then.
    """

    def __init__(self, message: str, *, skipped: Sequence[Skipped] = (), **about: Unpack[_About]) -> None:
        super().__init__(message, **about)
        self.skipped = tuple(skipped)


class ShortReadError(ReadError):
    """The file ended before the bytes that its header promises."""


class FileChangedError(ReadError):
    """The file at this path is no longer the one that was opened."""


class WriteError(GdsloadError, OSError):
    """Bytes could not be written."""


class DiskFullError(WriteError):
    """There is no room for what is to be written: the disk is full, or the user's share of it is used up."""


class BackendUnavailableError(GdsloadError, RuntimeError):
    """A backend asked for by name cannot be used here: it is never replaced in silence. Or no thread starts."""


class StateError(GdsloadError, ValueError):
    """A saved state that cannot be resumed with this loader."""


class LoaderClosedError(GdsloadError, RuntimeError):
    """The loader was closed."""
