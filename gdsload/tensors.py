"""Between tensors as users have them and bytes as shards hold them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.errors import SchemaError
from gdsload.format.dtypes import DTYPES, DType, dtype_of

__all__ = ["TORCH_DTYPES", "as_bytes", "element_type", "no_inference", "numpy_dtype", "torch_dtype"]

TORCH_DTYPES: dict[str, torch.dtype] = {
    code: getattr(torch, dtype.name) for code, dtype in DTYPES.items() if hasattr(torch, dtype.name)
}


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch dtype of an element type."""
    return TORCH_DTYPES[dtype.code]


_NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    code: torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
    for code, dtype in TORCH_DTYPES.items()
    if hasattr(np, DTYPES[code].name)
}


def numpy_dtype(dtype: DType) -> np.dtype[Any] | None:
    """The numpy dtype of an element type, where numpy has it and torch takes arrays of it; else None."""
    return _NUMPY_DTYPES.get(dtype.code)


def no_inference() -> AbstractContextManager[object]:
    """Leave torch's inference mode, for what may be used behind it; where it is not on, nothing is done."""
    return torch.inference_mode(mode=False) if torch.is_inference_mode_enabled() else nullcontext()


def element_type(value: object, field: str) -> tuple[DType, tuple[int, ...]]:
    """Element type and shape of what a user passed for a field.

    Args:
        value: a tensor, an array, a number, or (nested) lists of numbers.
        field: the field's name, for the error.

    Raises:
        SchemaError: if it has no element type that can be stored.
    """
    value = _stacked(value, field)
    if isinstance(value, torch.Tensor):
        _check_dense(value, field)
        return dtype_of(value.dtype, field), tuple(value.shape)
    array = _as_array(value, field)
    return dtype_of(array.dtype, field), array.shape


def as_bytes(value: object, dtype: DType, field: str) -> NDArray[np.uint8]:
    """The bytes of what a user passed for a field, as an array of shape ``[*shape, itemsize]``, copied only if needed.

    Args:
        value: a tensor on any device, an array, a number, or (nested) lists of numbers.
        dtype: the element type it must have. Python numbers and lists of them are converted when nothing is lost.
        field: the field's name, for the error.

    Raises:
        SchemaError: if it has another element type, or numbers do not fit.
    """
    value = _stacked(value, field)
    if isinstance(value, torch.Tensor):
        return _tensor_bytes(value, dtype, field)
    array = value if isinstance(value, np.ndarray | np.generic) else _convert(value, dtype, field)
    if isinstance(array, torch.Tensor):
        return _tensor_bytes(array, dtype, field)
    array = np.asarray(array)
    found = dtype_of(array.dtype, field)
    if found != dtype:
        raise SchemaError(f"it is {found.name}, but the schema says {dtype.name}", field=field, remedy=_CAST)
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and not np.little_endian):
        array = array.astype(array.dtype.newbyteorder("<"))
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    return contiguous.reshape(-1).view(np.uint8).reshape(*array.shape, dtype.itemsize)


_CAST = "Convert it first, or give the schema with the element type that you want."


def _tensor_bytes(value: torch.Tensor, dtype: DType, field: str) -> NDArray[np.uint8]:
    _check_dense(value, field)
    found = dtype_of(value.dtype, field)
    if found != dtype:
        raise SchemaError(f"it is {found.name}, but the schema says {dtype.name}", field=field, remedy=_CAST)
    dense = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # Not reshape(-1): it keeps the stride of a vector of one element or none, and then there is no view of its bytes.
    flat = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy()
    return flat.reshape(*value.shape, dtype.itemsize)


def _check_dense(value: torch.Tensor, field: str) -> None:
    if value.is_nested:
        raise SchemaError(
            "a nested tensor holds many samples",
            field=field,
            remedy="Pass it to write_batch, for a ragged field.",
        )
    if value.layout != torch.strided:
        raise SchemaError(f"a tensor of layout {value.layout} cannot be stored", field=field, remedy="Make it dense.")
    if value.is_meta:
        raise SchemaError("a tensor on the meta device has no data", field=field)


def _stacked(value: object, field: str) -> object:
    """A list of tensors or arrays as one of them, whose element type is then not a matter of choice."""
    if not isinstance(value, list | tuple) or not value or not isinstance(value[0], torch.Tensor | np.ndarray):
        return value
    try:
        return torch.stack(tuple(value)) if isinstance(value[0], torch.Tensor) else np.stack(value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise SchemaError(f"the list cannot be made one tensor: {str(error)[:200]}", field=field) from None


def _as_array(value: object, field: str) -> NDArray[Any]:
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    array = _numbers(value, field)
    if array.dtype.kind not in "biufc":
        raise SchemaError(f"{str(value)[:80]!r} is no number or list of numbers", field=field)
    # As torch.tensor does for Python's own numbers.
    return array.astype(_TORCH_DEFAULTS.get(array.dtype.name, array.dtype))


_TORCH_DEFAULTS = {"float64": np.dtype(np.float32), "complex128": np.dtype(np.complex64)}


def _convert(value: object, dtype: DType, field: str) -> NDArray[Any] | torch.Tensor:
    """Python numbers and lists, converted when the element type can hold them."""
    source = _numbers(value, field)
    if source.dtype.kind not in "biufc":
        raise SchemaError(f"{str(value)[:80]!r} is no number or list of numbers", field=field)
    if source.dtype.kind == "c" and dtype.name != "complex64":
        raise SchemaError(f"{str(value)[:80]} is complex, but the schema says {dtype.name}", field=field, remedy=_CAST)
    converted: NDArray[Any] | torch.Tensor
    if dtype.code in ("BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"):
        converted = torch.as_tensor(source, dtype=torch.float64, device="cpu").to(torch_dtype(dtype))
        # Where the element type has no infinity, torch takes its largest number instead.
        largest = torch.finfo(torch_dtype(dtype)).max
        too_large = np.isfinite(source) & (np.abs(source.astype(np.float64)) > largest)
        fits = _same_kind(converted.double().numpy(), source) and not too_large.any()
    else:
        with np.errstate(all="ignore"):
            converted = source.astype(np.dtype(dtype.name))
        fits = np.array_equal(converted, source) if converted.dtype.kind in "biu" else _same_kind(converted, source)
        fits &= converted.dtype.kind not in "iu" or source.dtype.kind != "f" or not (np.abs(source) >= 2**53).any()
    if not fits:
        raise SchemaError(f"{str(value)[:80]} does not fit {dtype.name}", field=field, remedy=_CAST)
    return converted


def _numbers(value: object, field: str) -> NDArray[Any]:
    """Python numbers as an array."""
    try:
        array = np.asarray(value)
        if array.dtype == np.float64 and isinstance(value, list | tuple) and (np.abs(array) >= 2**53).any():
            # numpy takes floats for whole numbers of which some need 64 bits and others could be negative.
            exact = np.array(value, dtype=object)
            if all(isinstance(number, Integral) for number in exact.flat):
                return exact.astype(np.uint64)
    except ValueError:
        raise SchemaError("nested lists of different lengths have no shape", field=field) from None
    except OverflowError:
        raise SchemaError("its numbers fit neither 64 bits with a sign nor without", field=field) from None
    return array


def _same_kind(converted: NDArray[Any], source: NDArray[Any]) -> bool:
    """Whether no number became infinite, finite, NaN, or of another sign. Rounding is what floating point is for."""
    same = np.array_equal(np.isinf(converted), np.isinf(source)) and np.array_equal(
        np.isnan(converted), np.isnan(source)
    )
    signs = source.dtype.kind == "c" or not ((converted < 0) & (source > 0) | (converted > 0) & (source < 0)).any()
    return bool(signs and same)
