"""The memory of a batch, whatever it is made of: the plain tensors in containers, and those of other tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from gdsload.engine.jagged import jagged_parts

_ROWS, _COLUMNS = ("crow_indices", "col_indices", "values"), ("ccol_indices", "row_indices", "values")
_SPARSE = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: _ROWS,
    torch.sparse_bsr: _ROWS,
    torch.sparse_csc: _COLUMNS,
    torch.sparse_bsc: _COLUMNS,
}
"""The methods that give the parts of a tensor, by layout, for layouts without memory themselves."""


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The plain tensors in a batch, in a field of one, or in what a transform made of it: containers may be nested."""
    found: list[torch.Tensor] = []
    _add_tensors(value, found, {})
    return found


def each_tensor(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A batch, or what torch's `default_collate` gives, with each tensor in it changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: each_tensor(part, change) for name, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [each_tensor(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _add_tensors(value: Any, found: list[torch.Tensor], seen: dict[int, Any]) -> None:
    # Each batch costs this. What batches are made of comes first; an abstract class takes longer to ask for.
    if type(value) is torch.Tensor and value.layout is torch.strided and not value.is_nested:
        found.append(value)
    elif isinstance(value, torch.Tensor):
        if id(value) not in seen:  # tensors may be each other's attributes
            seen[id(value)] = value  # held, or another one might get its id
            _add_parts(value, found, seen)
    elif isinstance(value, (list, tuple)):
        for part in value:
            _add_tensors(part, found, seen)
    elif isinstance(value, (dict, Mapping)):
        for part in value.values():
            _add_tensors(part, found, seen)
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            _add_tensors(getattr(value, each.name), found, seen)


def _add_parts(value: Any, found: list[torch.Tensor], seen: dict[int, Any]) -> None:
    """Add the parts of a tensor that may be a wrapper without memory."""
    if (parts := jagged_parts(value)) is not None:
        found += parts
        return
    # Subclasses first: they answer for a layout without having its parts.
    subclass = type(value) not in (torch.Tensor, torch.nn.Parameter)
    if subclass and is_traceable_wrapper_subclass(value):
        parts = tuple(getattr(value, name) for name in value.__tensor_flatten__()[0])
    elif subclass:
        parts = tuple(_attributes(value))
    elif (names := _SPARSE.get(value.layout)) is not None:
        parts = tuple(getattr(value, name)() for name in names)
    else:
        parts = (value.values(),) if value.is_nested else ()
    _add_tensors(parts, found, seen)
    # Torch raises an error for one that has no memory, and whose parts are not known.
    if not parts or (subclass and _has_memory(value)):
        found.append(value)


def _attributes(value: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors among the attributes of one."""
    slots = [name for each in type(value).__mro__ for name in getattr(each, "__slots__", ())]
    for name in {*getattr(value, "__dict__", ()), *slots}:
        if isinstance(part := getattr(value, name, None), torch.Tensor) and part is not value:
            yield part


def _has_memory(value: torch.Tensor) -> bool:
    try:
        return bool(value.untyped_storage().data_ptr())
    except Exception:  # of several kinds: it has none
        return False
