"""The memory of a batch, whatever it is made of: the plain tensors in containers, and those of other tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from gdsload.engine.jagged import jagged_parts

__all__ = ["tensors_of"]

_Tensor, _STRIDED = torch.Tensor, torch.strided
_ROWS, _COLUMNS = ("crow_indices", "col_indices", "values"), ("ccol_indices", "row_indices", "values")
_SPARSE = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: _ROWS,
    torch.sparse_bsr: _ROWS,
    torch.sparse_csc: _COLUMNS,
    torch.sparse_bsc: _COLUMNS,
}
"""What gives the parts of a tensor of each layout that has no memory of its own."""


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The plain tensors in a batch, in a field of one, or in what a transform made of it: containers may be nested."""
    found: list[torch.Tensor] = []
    _add_tensors(value, found)
    return found


def _add_tensors(value: Any, found: list[torch.Tensor]) -> None:
    # Each batch costs this. What batches are made of comes first; an abstract class takes longer to ask for.
    if type(value) is _Tensor and value.layout is _STRIDED and not value.is_nested:
        found.append(value)
    elif isinstance(value, torch.Tensor):
        _add_parts(value, found)
    elif isinstance(value, (list, tuple)):
        for part in value:
            _add_tensors(part, found)
    elif isinstance(value, (dict, Mapping)):
        for part in value.values():
            _add_tensors(part, found)
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            _add_tensors(getattr(value, each.name), found)


def _add_parts(value: Any, found: list[torch.Tensor]) -> None:
    """Add what a tensor is made of that may have no memory of its own."""
    if (parts := jagged_parts(value)) is not None:
        found += parts
    elif (names := _SPARSE.get(value.layout)) is not None:
        found += [getattr(value, name)() for name in names]
    elif value.is_nested:
        found.append(value.values())
    elif is_traceable_wrapper_subclass(value):
        _add_tensors([getattr(value, name) for name in value.__tensor_flatten__()[0]], found)
    elif type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        _add_tensors(vars(value), found)
    else:
        found.append(value)
