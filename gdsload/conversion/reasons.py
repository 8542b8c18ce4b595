"""Reasons why something cannot be read, for people: in a library's words or in this package's, and no bare errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gdsload.errors import FormatError, GdsloadError
from gdsload.shards.status import remedy_for
from gdsload.system.units import counted

_BARE = (KeyError, IndexError, TypeError, AttributeError)
"""Errors of Python itself, for a value that the code did not expect: their texts tell users nothing of their file."""
_MOST = 200
_LONGEST_REASON = _LONGEST_VALUE = 500
_LONGEST_REMEDY = 16_000  # a command with several paths


def in_words(error: BaseException) -> str:
    """The reason why a file or a value of a source cannot be taken, as the end of a sentence of bounded length.

    ``"it has no 'shards'"`` for a missing key.
    """
    if isinstance(error, GdsloadError):
        return error.message
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"a text in it is no {error.encoding.upper()}"
    if isinstance(error, KeyError) and error.args:
        key = error.args[0]  # or a sentence of h5py's
        return key[:_MOST] if isinstance(key, str) and " " in key else f"it has no {key!r:.100}"
    if type(error) in _BARE:
        return "a value in it is not of the kind that it must be"
    return " ".join(str(error).split())[:_MOST]


def as_pasted(value: str | list[str]) -> str:
    """A value as an option in a sentence has it: as Python writes it, or dots for one that is too long."""
    found = repr(value)
    return found if len(found) <= _LONGEST_VALUE else "[...]" if isinstance(value, list) else "..."


def counted_are(count: int, what: str) -> str:
    """The beginning of a sentence on so many things: "1 file is", "2 files are"."""
    return f"{counted(count, what)} {'is' if count == 1 else 'are'}"


def reason_of(trouble: Exception) -> str:
    """The reason that a sample is bad, for people: of bounded length, with the class of an error of other code.

    A remedy is whole: it may be a command that is pasted into a shell.
    """
    if type(trouble) in _BARE:
        return f"the sample cannot be made: {in_words(trouble)}"
    if not isinstance(trouble, GdsloadError):
        return f"{type(trouble).__name__}: {trouble}"[:_LONGEST_REASON].rstrip(".")
    ending = f". {trouble.remedy}" if trouble.remedy else ""
    said = str(trouble).removesuffix(ending)[:_LONGEST_REASON].rstrip(".")
    return said + ending[:_LONGEST_REMEDY].removesuffix(".")


@contextmanager
def reading(failed: str, file: str | None, *errors: type[Exception], remedy: str | None = None) -> Iterator[None]:
    """Turn errors of libraries that read damaged data into a `FormatError`; this package's own errors pass.

    Args:
        failed: what failed: ``"the table cannot be read"``.
        file: the file that the data are in.
        errors: their types. Without any it is all but `MemoryError`, as some readers of damaged files raise anything.
        remedy: what to do.

    Raises:
        FormatError: in place of such an error, with its reason.
    """
    try:
        yield
    except (GdsloadError, MemoryError):
        raise
    except Exception as error:
        if errors and not isinstance(error, errors):
            raise
        remedy = remedy or (remedy_for(error) if isinstance(error, OSError) and error.strerror else None)
        raise FormatError(f"{failed}: {in_words(error)}", file=file, remedy=remedy) from None


@contextmanager
def of_user(failed: str, name: str | None = None) -> Iterator[None]:
    """Name the user's own code in errors that it raises.

    Args:
        failed: what failed: ``"the dataset failed after 3 samples"``.
        name: what the code is called.

    Raises:
        FormatError: for any error but this package's own, which is its cause.
    """
    try:
        yield
    except (GdsloadError, MemoryError):
        raise
    except Exception as error:
        said = f"{failed}: {type(error).__name__}: {str(error)[:_MOST]}"
        raise FormatError(said.rstrip(": "), file=name) from error
