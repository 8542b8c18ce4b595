"""Conversions between the tensors of users and the bytes of shards."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import SchemaError
from gdsload.shards.format.dtypes import DTYPES, DType, dtype_of
from gdsload.shards.pictures import is_picture, picture_array
from gdsload.shards.python_numbers import check_masks, python_numbers

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeIs


def is_tensor(value: object) -> TypeIs[torch.Tensor]:
    """Return whether a value is a tensor. Torch is not imported for that: where it is not, no value is a tensor."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)  # none yet while another thread imports it
    return tensor is not None and isinstance(value, tensor)


def is_array(value: object) -> TypeIs[NDArray[Any] | torch.Tensor]:
    """Return whether a value is an array or a tensor."""
    return isinstance(value, np.ndarray) or is_tensor(value)


@cache
def torch_dtypes() -> Mapping[str, torch.dtype]:
    """The element types that the installed torch has: codes to torch dtypes."""
    import torch

    return {code: getattr(torch, dtype.name) for code, dtype in DTYPES.items() if hasattr(torch, dtype.name)}


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch dtype of an element type."""
    return torch_dtypes()[dtype.code]


_NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    code: np.dtype(dtype.name) for code, dtype in DTYPES.items() if hasattr(np, dtype.name)
}


def numpy_dtype(dtype: DType) -> np.dtype[Any] | None:
    """The numpy dtype of an element type, where numpy has it and torch takes arrays of it; else None."""
    return _NUMPY_DTYPES.get(dtype.code)


def no_inference() -> AbstractContextManager[object]:
    """Leave torch's inference mode, so that results may be used after it; does nothing outside of it."""
    import torch

    return torch.inference_mode(mode=False) if torch.is_inference_mode_enabled() else nullcontext()


def element_type(value: object, field: str) -> tuple[DType, tuple[int, ...]]:
    """Element type and shape of what a user passed for a field.

    Args:
        value: a tensor, an array, a picture of Pillow's, a number, or (nested) lists of numbers.
        field: the field's name, for the error.

    Raises:
        SchemaError: if it has no element type that can be stored.
    """
    value = _stacked(value, field)
    if is_tensor(value):
        check_dense(value, field)
        return dtype_of(value.dtype, field), tuple(value.shape)
    array = _as_array(value, field)
    return dtype_of(array.dtype, field), array.shape


def as_bytes(value: object, dtype: DType, field: str) -> NDArray[np.uint8]:
    """The bytes of what a user passed for a field, as an array of shape ``[*shape, itemsize]``, copied only if needed.

    Args:
        value: a tensor on any device, an array, a picture of Pillow's, a number, or (nested) lists of numbers.
        dtype: the element type it must have. Python numbers and lists of them are converted when nothing is lost.
        field: the field's name, for the error.

    Raises:
        SchemaError: if it has another element type, or numbers do not fit.
    """
    value = _stacked(value, field)
    if is_tensor(value):
        return _tensor_bytes(value, dtype, field)
    array = value if isinstance(value, np.ndarray | np.generic) else _convert(value, dtype, field)
    if is_tensor(array):
        return _tensor_bytes(array, dtype, field)
    array = np.asarray(array)
    _check_type(array.dtype, dtype, field)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    return contiguous.reshape(-1).view(np.uint8).reshape(*array.shape, dtype.itemsize)


_PARTS = "Write what stands for None, and of an object a field for each part (in convert by `map=`)."
CONVERT = "Convert it first, or name a type that holds it: in the schema, or in convert by `casts={...: ...}`."


def _check_type(given: object, dtype: DType, field: str) -> None:
    found = dtype_of(given, field)
    if found != dtype:
        raise SchemaError(f"it is {found.name}, but the schema says {dtype.name}", field=field, remedy=CONVERT)


def _tensor_bytes(value: torch.Tensor, dtype: DType, field: str) -> NDArray[np.uint8]:
    check_dense(value, field)
    _check_type(value.dtype, dtype, field)
    return memory_of(value).reshape(*value.shape, dtype.itemsize)


def memory_of(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """The bytes of a dense tensor's elements, in their order; shape ``[nbytes]``. They are copied only if needed."""
    import torch

    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # Not reshape(-1): it keeps the stride of a vector of one element or none, and then there is no view of its bytes.
    found: NDArray[np.uint8] = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy()
    return found


def check_dense(value: torch.Tensor, field: str) -> None:
    """Raise a `SchemaError` for a tensor whose elements are not in its memory as they are."""
    import torch

    if value.is_nested:
        raise SchemaError(
            "a nested tensor holds many samples", field=field, remedy="Pass it to write_batch, for a ragged field."
        )
    if value.layout != torch.strided:
        raise SchemaError(f"a tensor of layout {value.layout} cannot be stored", field=field, remedy="Make it dense.")
    if value.is_meta:
        raise SchemaError("a tensor on the meta device has no data", field=field)


def _stacked(value: object, field: str) -> object:
    """A list of tensors or arrays as one of them, which has their element type; of pictures, too.

    All values come here first, so masked ones are refused here.
    """
    if is_picture(value):
        return picture_array(value, field)
    check_masks(value, field)
    if not isinstance(value, list | tuple) or not value:
        return value
    if is_picture(value[0]):
        value = [picture_array(one, field) if is_picture(one) else one for one in value]
    if not is_array(value[0]):
        return value
    for one in value:
        check_masks(one, field)
    try:
        found = sys.modules["torch"].stack(tuple(value)) if is_tensor(value[0]) else np.stack(value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise SchemaError(f"the list cannot be made one tensor: {str(error)[:200]}", field=field) from None
    for one in value:
        if getattr(one, "dtype", None) != found.dtype:  # they have become of one type: as a cast, which loses none
            checked(numbers_of(one, field), one, dtype_of(found.dtype, field), field)
    return found


def _as_array(value: object, field: str) -> NDArray[Any]:
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    array = python_numbers(value, field)
    if array.dtype.kind not in "biufc":
        raise SchemaError(f"{str(value)[:80]!r} is no number or list of numbers", field=field, remedy=_PARTS)
    return array


def _convert(value: object, dtype: DType, field: str) -> NDArray[Any] | torch.Tensor:
    """Python numbers and lists, converted when the element type can hold them."""
    source = python_numbers(value, field)
    if source.dtype.kind == "f" and _is_whole(dtype) and (np.abs(source) >= _EXACT["float64"]).any():
        # numpy has made floats of whole numbers among them, so what they were is not certain.
        raise SchemaError(f"{str(value)[:80]} does not fit {dtype.name}: it has no exact value", field=field)
    return checked(source, value, dtype, field)


def numbers_of(value: object, field: str) -> NDArray[Any]:
    """A user's values for a field, as an array of numpy's; element types that numpy lacks become float32.

    Raises:
        SchemaError: if it is none of these.
    """
    value = _stacked(value, field)
    if not is_tensor(value):
        return python_numbers(value, field)
    check_dense(value, field)
    plain = value.detach().cpu().resolve_conj().resolve_neg()
    # Types that numpy does not have are narrower than float32.
    found: NDArray[Any] = (plain if plain.dtype in _in_numpy() else plain.float()).numpy()
    return found


def unrounded(value: object, field: str) -> object:
    """A value whose Python floats, if it has any, have the type float64: a narrower field refuses them then.

    For fields whose type is that of earlier samples. A type that a schema names rounds them, and so does a cast.
    """
    first = value
    while isinstance(first, list | tuple) and first:
        first = first[0]
    pair = isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], list | tuple)
    if isinstance(first, float | int) and not pair:
        with suppress(SchemaError):  # lists of several lengths are a batch, or are refused later
            found = numbers_of(value, field)
            return found if found.dtype == np.float64 else value
    return value


@cache
def _in_numpy() -> frozenset[torch.dtype]:
    import torch

    return frozenset((*(torch_dtypes()[code] for code in _NUMPY_DTYPES), torch.complex128))


# Up to which whole number a type has them all. Those of 8 bits are looked at value by value.
_EXACT = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24, "float64": 2**53, "complex64": 2**24}


def _is_whole(dtype: DType) -> bool:
    return dtype.name == "bool" or "int" in dtype.name


def _limits(dtype: DType) -> tuple[int, int]:
    if dtype.name == "bool":
        return 0, 1
    limits = np.iinfo(dtype.name)
    return int(limits.min), int(limits.max)


def checked(source: NDArray[Any], shown: object, dtype: DType, field: str) -> NDArray[Any] | torch.Tensor:
    """Numbers in another element type, which has to hold all of them; `shown` is the user's value, for errors.

    Raises:
        SchemaError: if one is lost.
    """
    if source.dtype.kind not in "biufc":
        raise SchemaError(f"{str(shown)[:80]!r} is no number or list of numbers", field=field, remedy=_PARTS)
    if source.dtype.kind == "c" and dtype.name != "complex64":
        raise SchemaError(f"{str(shown)[:80]} is complex, but {dtype.name} was expected", field=field, remedy=CONVERT)
    found, lost = fitted(source, dtype)
    if lost is not None:
        at = tuple(int(place) for place in np.unravel_index(np.flatnonzero(lost)[0], source.shape))
        where = f" at {list(at)}" if at else ""
        raise SchemaError(
            f"{source[at]!s:.80}{where} does not fit {dtype.name} ({held(dtype)})", field=field, remedy=CONVERT
        )
    return found


def fitted(source: NDArray[Any], dtype: DType) -> tuple[NDArray[Any] | torch.Tensor, NDArray[np.bool_] | None]:
    """Real numbers in another element type, and a mask of those that are lost; None: none is."""
    found = converted(source, dtype)
    if not source.size or _all_fit(source, dtype):
        return found, None
    with np.errstate(all="ignore"):  # to look at a signalling NaN is enough for a warning
        lost = np.logical_not(_fit(source, found, dtype))
    return found, lost if lost.any() else None


def bounds(dtype: DType) -> tuple[float, float]:
    """The least and the largest finite number of a real element type, exactly: whole numbers for whole types."""
    if _is_whole(dtype):
        return _limits(dtype)
    known = numpy_dtype(dtype)
    if known is not None:
        return float(np.finfo(known).min), float(np.finfo(known).max)
    import torch

    limits = torch.finfo(torch_dtype(dtype))
    return limits.min, limits.max


def converted(source: NDArray[Any], dtype: DType) -> NDArray[Any] | torch.Tensor:
    """The same numbers in another element type; some may be lost."""
    wanted = numpy_dtype(dtype)
    with np.errstate(all="ignore"):
        if wanted is not None:
            return source.astype(wanted)
        import torch

        by = np.float32 if source.dtype.kind == "f" and source.dtype.itemsize <= 4 else np.float64
        return torch.from_numpy(np.array(source, by)).to(torch_dtype(dtype))


def _all_fit(source: NDArray[Any], dtype: DType) -> bool:
    """Return whether the least and the largest value alone show that all fit, as they mostly do."""
    if source.dtype.kind == "c":
        return False
    low, high = source.min(), source.max()
    if source.dtype.kind != "f":
        least, largest = _limits(dtype) if _is_whole(dtype) else 2 * (_EXACT.get(dtype.name, -1),)
        return (least if _is_whole(dtype) else -least) <= int(low) and int(high) <= largest
    return dtype.name in _EXACT and max(abs(float(low)), abs(float(high))) <= bounds(dtype)[1]


def _fit(source: NDArray[Any], became: NDArray[Any] | torch.Tensor, dtype: DType) -> NDArray[np.bool_]:
    """A mask of the values that are not lost."""
    if _is_whole(dtype):
        least, largest = _limits(dtype)
        if source.dtype.kind != "f":
            return (source >= least) & (source <= largest)
        # The number after the largest is a power of two, which every type that reaches it has.
        whole: NDArray[np.bool_] = np.isfinite(source) & (np.trunc(source) == source)
        return whole & (source >= float(least)) & (source < float(largest + 1))
    if dtype.name == "complex64" and source.dtype.kind == "c":
        found = np.asarray(became)
        return _kept(source.real, found.real, dtype) & _kept(source.imag, found.imag, dtype)
    found = became.double().numpy() if is_tensor(became) else np.asarray(became)
    found = found.real.astype(np.float64)
    if source.dtype.kind == "f":
        return _kept(source, found, dtype)
    same: NDArray[np.bool_] = source.astype(np.longdouble) == found  # it has all of 64 bits, unlike float64
    return same


def _kept(source: NDArray[Any], found: NDArray[Any], dtype: DType) -> NDArray[np.bool_]:
    """A mask of the numbers that did not become infinite, finite, NaN, or of another sign; some types have no 0."""
    kept: NDArray[np.bool_] = (np.isinf(found) == np.isinf(source)) & (np.isnan(found) == np.isnan(source))
    kept &= ~((found < 0) & (source > 0) | (found > 0) & (source < 0)) & ((source != 0) | (found == 0))
    if dtype.name not in _EXACT:  # where the element type has no infinity, torch takes its largest number instead
        kept &= ~(np.isfinite(source) & (np.abs(source) > np.float64(bounds(dtype)[1])))
    return kept


def held(dtype: DType) -> str:
    """The range of an element type, for people."""
    if dtype.name == "bool":
        return "0 and 1"
    if _is_whole(dtype):
        return "whole numbers from {} to {}".format(*_limits(dtype))
    exact = f", whole numbers exactly up to {_EXACT[dtype.name]}" if dtype.name in _EXACT else ""
    low, high = bounds(dtype)
    return f"numbers {f'from {low:g} to' if low > 0 else 'up to'} {high:g}{exact}"
