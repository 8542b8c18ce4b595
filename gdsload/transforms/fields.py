"""The fields of a batch that transforms are for."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any, SupportsFloat

import torch

from gdsload.errors import OptionError

Batch = dict[str, Any]


def refused(transform: Any, option: str, why: str, remedy: str | None = None) -> OptionError:
    """The error for an option of a transform: ``p of RandomFlip is 2, which is no probability``."""
    said = f"of {type(transform).__name__} is {getattr(transform, option)!r:.80}, {why}"
    return OptionError(said, option=option, remedy=remedy)


def tensor_field(transform: Any, batch: Batch, dimensions: int) -> torch.Tensor:
    """The field that a transform is for; OptionError if it is missing, or no tensor of so many dimensions at least."""
    if transform.field not in batch:
        raise OptionError(f"{transform}: the batch has no such field", remedy=f"It has {', '.join(map(repr, batch))}.")
    value = batch[transform.field]
    if not isinstance(value, torch.Tensor):
        raise OptionError(f"{transform}: the field is a {type(value).__name__}, no tensor")
    if value.dim() < dimensions:
        raise OptionError(f"{transform}: the field has shape {tuple(value.shape)}, less than {dimensions} dimensions")
    return value


def fitting(transform: Any, size: int | tuple[int, int], value: torch.Tensor) -> tuple[int, int]:
    """Height and width that a transform is to cut out of `value`; OptionError if it has not so many."""
    rows, columns = height_and_width(transform, size)
    height, width = value.shape[-2:]
    if not (0 < rows <= height and 0 < columns <= width):
        raise OptionError(f"{transform}: {rows} x {columns} cannot be cut out of {height} x {width}")
    return rows, columns


def height_and_width(transform: Any, size: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width of a size, where one number is a square; OptionError if it is neither one nor two numbers."""
    sides: Any = size if hasattr(size, "__len__") else (size, size)
    try:
        rows, columns = map(index, sides)
    except (TypeError, ValueError):
        raise refused(transform, "size", "neither a whole number nor height and width") from None
    return rows, columns


def element_type(transform: Any, given: object) -> torch.dtype:
    """The element type that a transform is given: torch's, or its name, as fields of a schema have it.

    Raises OptionError if it is none that values can be cast to.
    """
    # numpy's types have names, too.
    name = given if isinstance(given, str) else getattr(given, "name", None) or getattr(given, "__name__", None)
    name = f"torch.{str(name).removeprefix('torch.')}"
    found = given if isinstance(given, torch.dtype) else getattr(torch, name.removeprefix("torch."), None)
    try:
        # "float" is torch's float32 and numpy's float64: a type is taken by its own name alone.
        if not isinstance(found, torch.dtype) or (found is not given and str(found) != name):
            raise TypeError("no element type")
        torch.empty(0, device="cpu").to(found)
    except (TypeError, RuntimeError):
        remedy = "Pass one of torch's, `torch.int64`, or its name, `'int64'`."
        raise refused(transform, "dtype", "which is no element type", remedy) from None
    return found


def numbers(transform: Any, name: str, values: Iterable[SupportsFloat]) -> tuple[float, ...]:
    """A transform's numbers for the channels, given in any iterable, as Python's; OptionError if they are none."""
    try:
        return tuple(map(float, values))
    except (TypeError, ValueError):
        raise refused(transform, name, "which is no sequence of numbers") from None
