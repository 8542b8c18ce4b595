"""Whether the code that begins an epoch unpacks its batches: of dicts it would get the names of fields, and no error.

    for x, y in loader:                       for i, (x, y) in enumerate(loader):
    for batch in loader:                      for i, batch in enumerate(loader):
        x, y = batch                              x, y = batch
    x, y = next(iter(loader))

It is read from the instructions of the caller around the one that calls `__iter__`, once for each such place. Batches
stay plain dicts: a subclass that refuses to be unpacked would be a leaf to `torch.utils._pytree`, and a graph break or
a guard to `torch.compile`.

Where something stands in between (`tqdm`, a comprehension, a framework that calls a function with the batch) nothing is
told: a generator may make pairs itself, and each version of Python has other instructions for a comprehension. What is
unpacked there are texts, which fail where a tensor is wanted.
"""

from __future__ import annotations

import dis
import re
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple, NoReturn

from gdsload.errors import OptionError

__all__ = ["refuse_unpacking", "unpacks_batches"]

_UNPACK = ("UNPACK_SEQUENCE", "UNPACK_EX")
_SILENT = ("CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL", "PUSH_NULL", "RESUME")
"""Instructions that stand between others without a meaning for this."""
_MOST_BEFORE = 8
"""Instructions between a function's name and its call: `enumerate(self.train.loader, 1)` has five."""


def unpacks_batches(caller: FrameType) -> bool:
    """Whether a frame that is calling a loader's `__iter__` is going to unpack each batch, or the first.

    Args:
        caller: the frame.
    """
    return _unpacks(caller.f_code, caller.f_lasti)


def refuse_unpacking(fields: tuple[str, ...]) -> NoReturn:
    """Say what to do instead.

    Raises:
        OptionError: in any case.
    """
    raise OptionError(
        "batches are dicts, and unpacking one gives the names of its fields, not their values",
        remedy=f"Pass as_tuple={fields!r} to the loader, or take batch[{fields[0]!r}] of each batch.",
    )


@lru_cache(maxsize=64)
def _unpacks(code: CodeType, offset: int) -> bool:
    found = [each for one in dis.get_instructions(code) if one.opname not in _SILENT for each in _single(one)]
    at = next((number for number, one in enumerate(found) if one.offset == offset), None)
    if at is None:
        return False
    names = [one.name for one in found[at : at + 4]] + [""] * 4
    if names[0] == "GET_ITER":
        return names[1] == "FOR_ITER" and _taken_apart(found[at + 2 :])
    if not names[0].startswith("CALL"):
        return False
    if names[1:4] == ["GET_ITER", "FOR_ITER", "UNPACK_SEQUENCE"] and found[at + 3].argument == 2:
        numbered = found[at + 4 : at + 5]
        stored = bool(numbered) and numbered[0].name.startswith("STORE_")
        return stored and _taken_apart(found[at + 5 :]) and _called(found[:at]) == ["enumerate"]
    return names[1].startswith("CALL") and names[2] in _UNPACK and _called(found[:at]) == ["next", "iter"]


class _Instruction(NamedTuple):
    name: str
    argument: Any
    offset: int


def _single(one: dis.Instruction) -> list[_Instruction]:
    """An instruction, or the two that Python 3.13 has made one of: ``STORE_FAST_LOAD_FAST``."""
    parts = re.findall("(?:LOAD|STORE)_FAST(?=_LOAD_FAST|_STORE_FAST|$)", one.opname)
    if len(parts) < 2 or not isinstance(one.argval, tuple):
        return [_Instruction(one.opname, one.argval, one.offset)]
    return [_Instruction(name, argument, one.offset) for name, argument in zip(parts, one.argval, strict=True)]


def _taken_apart(after: list[_Instruction]) -> bool:
    """Whether what lies on the stack is unpacked at once, or first gets a name."""
    names = [one.name for one in after[:3]] + [""] * 3
    if names[0] in _UNPACK:
        return True
    again = names[0].startswith("STORE_") and names[1].startswith("LOAD_") and after[0].argument == after[1].argument
    return again and names[2] in _UNPACK


def _called(before: list[_Instruction]) -> list[str]:
    """Which of the functions in question are about to be called, the last one with the loader."""
    loads = [one for one in before[-_MOST_BEFORE:] if one.name in ("LOAD_GLOBAL", "LOAD_NAME")]
    called = [str(one.argument) for one in loads if one.argument in ("enumerate", "iter", "next")]
    return called[-2:] if called[-1:] == ["iter"] else called[-1:]
