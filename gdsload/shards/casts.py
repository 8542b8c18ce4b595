"""Values of a field as another element type: none is lost, or those beyond what it holds are clipped and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gdsload.shards.format.dtypes import DType
from gdsload.shards.values import bounds, checked, converted, fitted, numbers_of

if TYPE_CHECKING:
    import torch


def cast(value: object, dtype: DType, field: str) -> NDArray[Any] | torch.Tensor:
    """Convert a user's values for a field to another element type, if no value is lost by that.

    Whole numbers and booleans must be in range; floating-point numbers become whole ones only if they are whole, and
    whole ones floating-point ones only if these can be exactly that. Between floating-point types values are rounded;
    but none may become infinite or finite, NaN or a number, or of another sign.

    Args:
        value: a tensor on any device, an array, a number, or (nested) lists of numbers.
        dtype: the element type.
        field: the field's name, for the error.

    Returns:
        The same shape; an array, or a tensor on the CPU where numpy does not have the element type.

    Raises:
        SchemaError: if a value would be lost: the value, its place, and the range of the element type.
    """
    return checked(numbers_of(value, field), value, dtype, field)


def clip(value: object, dtype: DType, field: str) -> tuple[NDArray[Any] | torch.Tensor, int]:
    """The same, but a number beyond what the element type holds becomes the next that it does.

    NaN, infinite numbers, and fractions within its range are refused, as by `cast`.

    Args:
        value: see `cast`.
        dtype: the element type.
        field: the field's name, for the error.

    Returns:
        What `cast` returns, and how many numbers were clipped.

    Raises:
        SchemaError: if a value would be lost by anything else.
    """
    source = numbers_of(value, field)
    if source.dtype.kind == "b":
        source = source.view(np.uint8)
    if source.dtype.kind not in "iuf" or dtype.name == "complex64":
        return checked(source, value, dtype, field), 0
    found, lost = fitted(source, dtype)
    if lost is None:
        return found, 0
    wide = source.astype(np.float64) if source.dtype.kind == "f" else source
    low, high = bounds(dtype)
    beyond = lost & np.isfinite(wide)
    # A lost number at an edge is beyond it: what a floating-point type has for the edge may be the next number.
    below, above = (
        beyond & outside(wide, float(bound) if source.dtype.kind == "f" else bound)
        for bound, outside in ((low, np.less_equal), (high, np.greater_equal))
    )
    found = checked(np.where(below | above, source.dtype.type(1), source), value, dtype, field)
    if isinstance(found, np.ndarray):
        found[below], found[above] = low, high
    else:
        found = converted(np.where(below, low, np.where(above, high, wide)), dtype)
    return found, int((below | above).sum())
