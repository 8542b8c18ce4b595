"""Lines of JSON as a table of Arrow's, and what is wrong where they are none."""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from gdsload.conversion.reasons import as_pasted
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.json_types import has_large_float
from gdsload.errors import FormatError

__all__ = ["parsed"]

_ROW = re.compile(r"^JSON parse error: | in row \d+$")  # of those that it was given
_CHANGED = re.compile(r"Column\(/(.*)\) changed from .* in row (\d+)", re.DOTALL)
_BEFORE = codecs.BOM_UTF8 + b" \t\r\n"
_USUAL: dict[type | tuple[type, ...], tuple[str, object]] = {bool: ("bool", False), (str, list, dict): ("string", "")}
"""The type that a value has, and what may stand for one that is missing; lists and objects as texts of JSON."""


def parsed(lines: Sequence[bytes], where: str, schema: Any, *, others: str) -> Any:
    """A table of lines.

    Args:
        lines: the lines.
        where: where they are, for errors.
        schema: the types of keys.
        others: what is done with other keys: ``"infer"``, ``"error"`` or ``"ignore"``.

    Raises:
        FormatError: if they are no table. Of many lines it is not looked for which key is wrong, but by ``"infer"``.
    """
    arrow = need("pyarrow", file=where)
    if any(line.lstrip(_BEFORE)[:1] != b"{" for line in lines):  # a null would kill the process in Arrow
        raise FormatError("a line is no JSON object", file=where)
    try:
        found = _read(lines, schema, others)
        if len(found) != len(lines):
            raise FormatError("a line is no JSON object alone", file=where)
        return found
    except arrow.ArrowException as error:
        named = _of_a_key(lines, schema, str(error), where) if len(lines) == 1 or others == "infer" else None
        raise named or FormatError(
            f"the lines are no table: {_ROW.sub('', str(error))[:200]}",
            file=where,
            remedy="Say of what type a key is, `types={'x': 'float64'}`, say; keep what varies as a text of JSON, "
            "`as_json=['x']`; or choose other fields: `fields=[...]`.",
        ) from None


def _read(lines: Sequence[bytes], schema: Any, others: str) -> Any:
    reader, content = need("pyarrow.json"), b"".join(lines)
    return reader.read_json(
        io.BytesIO(content),
        read_options=reader.ReadOptions(use_threads=False, block_size=len(content) + 1),
        parse_options=reader.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others),
    )


def _is_read(lines: Sequence[bytes], name: str, kind: Any) -> bool:
    """Return whether a key has values of a type alone."""
    arrow = need("pyarrow")
    try:
        table = _read(lines, arrow.schema([(name, kind)]), "ignore")
    except arrow.ArrowException:
        return False
    return not has_large_float(table.column(0))


def _of_a_key(lines: Sequence[bytes], schema: Any, said: str, where: str) -> FormatError | None:
    """The error that names the key that is wrong; None if none is."""
    reason = _ROW.sub("", said)[:200]
    if "unexpected field" in said:
        with suppress(ValueError, RecursionError):
            found = json.loads(lines[0])
            return next((_late(key, found[key], where) for key in found if key not in schema.names), None)
    if (changed := _CHANGED.search(said)) is not None and changed[1]:
        with suppress(ValueError, RecursionError, IndexError):
            keys = json.loads(lines[int(changed[2])])
            return _mixed(
                max((key for key in keys if f"{changed[1]}/".startswith(f"{key}/")), key=len), None, reason, where
            )
    for one in schema:
        if not _is_read(lines, one.name, one.type):
            return _mixed(one.name, _wider(lines, one), reason, where)
    return None


def _wider(lines: Sequence[bytes], known: Any) -> str | None:
    """The type that has the numbers of a key of whole ones that its type has not; None if there is none."""
    arrow = need("pyarrow")
    kinds = ("int64", "uint64", "float64") if arrow.types.is_integer(known.type) else ()
    found = next((kind for kind in kinds if _is_read(lines, known.name, arrow.type_for_alias(kind))), None)
    return None if found == "int64" else found


def _mixed(key: str, kind: str | None, reason: str, where: str) -> FormatError:
    name = f"{key!r:.100}"
    rounds = ", which rounds whole numbers beyond 2**53" if kind == "float64" else ""
    pasted = as_pasted(key)
    way = f"Say of what type it is, `types={{{pasted}: {kind!r}}}`{rounds}; or keep it" if kind else "Keep it"
    return FormatError(
        f"the key {name} has values of several types: {reason}",
        file=where,
        remedy=f"{way} as a text of JSON, `as_json=[{pasted}]`; or choose other fields: `fields=[...]`.",
    )


def _late(key: str, value: Any, where: str) -> FormatError:
    name = as_pasted(key)
    kind, usual = next((how for what, how in _USUAL.items() if isinstance(value, what)), ("float64", 0))
    text = f" and `as_json=[{name}]`" if isinstance(value, list | dict) else ""
    return FormatError(
        f"the first lines have no key {key!r:.100}",
        file=where,
        remedy="Say of what type it is and what stands for it where it is missing, "
        f"`types={{{name}: {kind!r}}}` and `fill={{{name}: {usual!r}}}`{text}, say; "
        "or choose other fields: `fields=[...]`.",
    )
