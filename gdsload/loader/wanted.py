"""The samples and fields that users ask for: whole numbers of whatever kind, and names."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.errors import OptionError
from gdsload.shards.format.schema import Field, Schema
from gdsload.system.names import check_list

Indices = Sequence[int] | NDArray[np.integer[Any]] | torch.Tensor
_OF_A_MASK = "Pass the indices of what is true, as mask.nonzero().flatten() or np.flatnonzero(mask) gives."


def whole_numbers(indices: Indices) -> NDArray[np.int64]:
    """Whole numbers of whatever kind; as objects if int64 cannot hold one, which is outside of any dataset then.

    Raises OptionError if they are a mask, no whole numbers, or of another shape than a vector.
    """
    if isinstance(indices, torch.Tensor | np.ndarray):
        if indices.dtype in (torch.bool, np.bool_):
            raise OptionError(f"are a mask, of shape {tuple(indices.shape)}", option="indices", remedy=_OF_A_MASK)
        if indices.ndim != 1:
            raise OptionError(
                f"are an array of shape {tuple(indices.shape)}",
                option="indices",
                remedy="Pass a vector, as `indices.reshape(-1)` is one.",
            )
    if isinstance(indices, torch.Tensor):
        indices = indices.detach().cpu().numpy()
    if isinstance(indices, np.ndarray) and indices.dtype.kind == "i":
        return indices.astype(np.int64)
    if is_mask(indices):
        raise OptionError(f"are a mask, a {type(indices).__name__} of booleans", option="indices", remedy=_OF_A_MASK)
    try:
        numbers = [operator.index(index) for index in indices]
    except TypeError:
        raise _no_numbers(indices) from None
    try:
        return np.array(numbers, np.int64)
    except OverflowError:
        return np.array(numbers, object)  # for an error that names the number as it was given


def is_mask(indices: object) -> bool:
    """Return whether a list or tuple begins with a boolean, which Python would take for the number 0 or 1."""
    first = indices[0] if isinstance(indices, list | tuple) and indices else None
    return isinstance(first, bool | np.bool_) or (isinstance(first, torch.Tensor) and first.dtype == torch.bool)


def _no_numbers(indices: object) -> OptionError:
    odd = indices
    for one in indices if isinstance(indices, Iterable) else ():
        try:
            operator.index(one)
        except TypeError:
            odd = one
            break
    several = None
    if isinstance(odd, slice):
        parts = [odd.start, odd.stop] if odd.step is None else [odd.start, odd.stop, odd.step]
        said = ":".join("" if part is None else str(part) for part in parts)
        several = "For several samples pass a range to select, read_batch or gather: `"
        several += f"dataset.select(range(len(dataset))[{said}])`."
    return OptionError(f"{odd!r:.100} is no index of a sample, which is a whole number", remedy=several)


def known_fields(schema: Schema, fields: Sequence[str] | None) -> tuple[str, ...]:
    """The fields that are wanted, in the schema's order; all of them if none are named.

    Raises OptionError if it is no list of names, names one that there is not, or is empty.
    """
    check_list("fields", fields)
    try:
        wanted = list(schema) if fields is None else list(fields)
    except TypeError:
        raise OptionError(f"is {fields!r}, which is no list of names", option="fields") from None
    for name in wanted:
        known_field(schema, name)
    if not wanted:
        raise OptionError("is empty", option="fields", remedy="Name at least one field, or leave it out to read all.")
    return tuple(name for name in schema if name in wanted)


def known_field(schema: Schema, name: object) -> Field:
    """The field of a name; OptionError if there is none."""
    if not isinstance(name, str) or name not in schema:
        raise OptionError(f"the dataset has no field {name!r}", remedy=f"It has {', '.join(map(repr, schema))}.")
    return schema[name]
