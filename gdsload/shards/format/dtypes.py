"""The element types that a shard can hold: those of safetensors whose elements are whole bytes."""

from __future__ import annotations

from dataclasses import dataclass

from gdsload.errors import SchemaError


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    Attributes:
        code: its name in a safetensors header.
        name: its name in torch (and in numpy or ml_dtypes, where they have it).
        itemsize: bytes an element.
    """

    code: str
    name: str
    itemsize: int


# Codes: https://github.com/huggingface/safetensors, safetensors/src/tensor.rs, enum Dtype (0.8.0), but for F4, F6_E2M3
# and F6_E3M2: their elements are no whole bytes, so a row has no byte address.
DTYPES: dict[str, DType] = {
    code: DType(code, name, itemsize)
    for code, name, itemsize in (
        ("BOOL", "bool", 1),
        ("U8", "uint8", 1),
        ("I8", "int8", 1),
        ("F8_E4M3", "float8_e4m3fn", 1),
        ("F8_E5M2", "float8_e5m2", 1),
        ("F8_E8M0", "float8_e8m0fnu", 1),
        ("F8_E4M3FNUZ", "float8_e4m3fnuz", 1),
        ("F8_E5M2FNUZ", "float8_e5m2fnuz", 1),
        ("U16", "uint16", 2),
        ("I16", "int16", 2),
        ("F16", "float16", 2),
        ("BF16", "bfloat16", 2),
        ("U32", "uint32", 4),
        ("I32", "int32", 4),
        ("F32", "float32", 4),
        ("U64", "uint64", 8),
        ("I64", "int64", 8),
        ("F64", "float64", 8),
        ("C64", "complex64", 8),
    )
}

_BY_NAME = {dtype.name: dtype for dtype in DTYPES.values()}
_TIMES = "Store times as whole numbers of their unit: x.astype('int64'). "
_PARTS = "Store each part of a structured array by itself: x['a'], say. "
_WAYS_OUT = {
    "datetime64": _TIMES,
    "timedelta64": _TIMES,
    "bytes": "Pass bytes as a list, x.tolist(), which leaves out zeros at the end; or as numbers, x.view('uint8'). ",
    "str": "Pass texts as a list, x.tolist(), say. ",
    "complex128": "Round it to complex64, or store its parts: x.real and x.imag. ",
    "record": _PARTS,
    "void": f"{_PARTS}Store raw ones as bytes: x.tobytes(). ",
}
"""The remedies for element types of numpy's that are none of these."""


def dtype_of(value: object, field: str | None = None) -> DType:
    """The element type that `value` names.

    Args:
        value: a safetensors code (``"BF16"``), a name (``"bfloat16"``), a torch dtype, a numpy dtype
            or scalar type, or an ml_dtypes type.
        field: the field it is for, for the error.

    Raises:
        SchemaError: if there is no such type in v1 of the format.
    """
    if isinstance(value, DType):
        return value
    text = value if isinstance(value, str) else str(getattr(value, "name", None) or getattr(value, "__name__", value))
    found = DTYPES.get(text) or _BY_NAME.get(text.removeprefix("torch."))
    if found is None:
        way_out = next((way for kind, way in _WAYS_OUT.items() if text.startswith(kind)), "")
        remedy = f"{way_out}Supported are {', '.join(sorted(_BY_NAME))}."
        raise SchemaError(f"element type {text!r:.80} cannot be stored", field=field, remedy=remedy)
    return found
