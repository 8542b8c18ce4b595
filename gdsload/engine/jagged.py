"""Nested tensors of torch's jagged layout, of values and offsets that are at hand.

torch's public function makes one as a view of its values, by way of an operator whose Python looks at each argument.
That takes several times as long as the class itself, of which torch's own operators make theirs, and longer than the
link takes to copy a batch of 1 MiB to a GPU; `values()` and `offsets()` take a while, too. The class is not public, so
the first tensor of a process is compared with the public function's. Where they differ, or there is no such class, the
public function makes all of them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_Make = Callable[[torch.Tensor, torch.Tensor, int, int], torch.Tensor]
"""Makes a nested tensor of the rows of all samples, ``[rows, ...]``; the offset of each among them and the end of the
last, int64 ``[samples + 1]``; and the rows of the shortest and the longest sample. Tensors that are made of the same
offsets are of one shape for torch."""


def jagged_parts(tensor: Any) -> tuple[torch.Tensor, ...] | None:
    """The values and offsets of a nested tensor of the jagged layout, or views of them; also lengths, if it has some.

    None of any other tensor.
    """
    values, offsets = getattr(tensor, "_values", None), getattr(tensor, "_offsets", None)
    found: tuple[torch.Tensor | None, ...]
    # Without asking for more where there are such attributes: each other answer of theirs takes 10 us.
    if isinstance(values, torch.Tensor) and isinstance(offsets, torch.Tensor):
        found = values, offsets, getattr(tensor, "_lengths", None)
    elif tensor.is_nested and tensor.layout is torch.jagged:
        found = tensor.values(), tensor.offsets(), tensor.lengths()
    else:
        return None
    return tuple(part for part in found if part is not None)


def by_public_function(values: torch.Tensor, offsets: torch.Tensor, shortest: int, longest: int) -> torch.Tensor:
    """See `_Make`."""
    return torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=shortest, max_seqlen=longest)


def by_class(values: torch.Tensor, offsets: torch.Tensor, shortest: int, longest: int) -> torch.Tensor:
    """See `_Make`."""
    from torch.nested._internal import nested_tensor

    # Each has its own, of the same memory: what is made of one object would be compiled for that alone.
    known = {"min_seqlen": _as_size(shortest).data, "max_seqlen": _as_size(longest).data}
    # Up to torch 2.12 it asks the new tensor for its dimensions, each time by way of the class's Python.
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 (the name that torch's guide to subclasses gives)
        return nested_tensor.NestedTensor(values, offsets, _metadata_cache=known)


@functools.lru_cache(maxsize=4096)
def _as_size(number: int) -> torch.Tensor:
    """A number as torch keeps it, so that compiled code may trace it: the size of a tensor without elements.

    It is kept: any call that makes a tensor gives the interpreter lock back, which another thread may hold for long.
    """
    return torch.zeros(number, 0, device="cpu")


@functools.cache
def maker() -> _Make:
    """The function that makes nested tensors in this process."""
    try:
        with torch.device("cpu"), _quiet():  # whatever device the caller has tensors made on
            parts = torch.arange(6).view(3, 2), torch.tensor([0, 1, 3]), 1, 2
            return by_class if _seen(by_class(*parts)) == _seen(by_public_function(*parts)) else by_public_function
    except Exception:
        return by_public_function


def _seen(nested: Any) -> tuple[object, ...]:
    """The properties of a nested tensor that can be compared."""
    parts = nested.values(), nested.offsets()
    limits = nested._get_min_seqlen(), nested._get_max_seqlen()  # noqa: SLF001 (nothing public says them)
    return type(nested), nested.shape, nested.stride(), nested.layout, limits, *(part.tolist() for part in parts)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep it to us that torch's function, at its first call, warns of a call that it makes itself."""

    def quiet(record: logging.LogRecord) -> bool:
        return "is_fx_tracing" not in record.getMessage()

    logger = logging.getLogger("torch.fx._symbolic_trace")
    logger.addFilter(quiet)
    try:
        yield
    finally:
        logger.removeFilter(quiet)
