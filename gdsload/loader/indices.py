"""The samples that users ask for: whole numbers of whatever kind."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.errors import OptionError

__all__ = ["Indices", "whole_numbers"]

Indices = Sequence[int] | NDArray[np.integer[Any]] | torch.Tensor


def whole_numbers(indices: Indices) -> NDArray[np.int64]:
    """Whole numbers of whatever kind; as objects if int64 cannot hold one, which is outside of any dataset then.

    Raises:
        OptionError: if they are a mask, or of another shape than a vector.
    """
    if isinstance(indices, torch.Tensor | np.ndarray):
        if indices.dtype in (torch.bool, np.bool_):
            raise OptionError(
                f"indices are a mask, of shape {tuple(indices.shape)}",
                remedy="Pass the indices of what is true, as mask.nonzero().flatten() or np.flatnonzero(mask) gives.",
            )
        if indices.ndim != 1:
            raise OptionError(
                f"indices are an array of shape {tuple(indices.shape)}",
                remedy="Pass a vector, as indices.reshape(-1) is one.",
            )
    if isinstance(indices, torch.Tensor):
        indices = indices.detach().cpu().numpy()
    if isinstance(indices, np.ndarray) and indices.dtype.kind == "i":
        return indices.astype(np.int64)
    numbers = [operator.index(index) for index in indices]
    try:
        return np.array(numbers, np.int64)
    except OverflowError:
        return np.array(numbers, object)  # for an error that names the number as it was given
