"""Names of fields that a user passes, in the schema's order."""

from __future__ import annotations

from collections.abc import Sequence

from gdsload.errors import OptionError
from gdsload.shards.format.schema import Field, Schema
from gdsload.system.names import check_list

__all__ = ["known_field", "known_fields"]


def known_fields(schema: Schema, fields: Sequence[str] | None) -> tuple[str, ...]:
    """The fields that are wanted, in the schema's order; all of them if none are named.

    Raises:
        OptionError: if it is no list of names, names one that there is not, or is empty.
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
    """The field of a name.

    Raises:
        OptionError: if there is none.
    """
    if not isinstance(name, str) or name not in schema:
        raise OptionError(f"the dataset has no field {name!r}", remedy=f"It has {', '.join(map(repr, schema))}.")
    return schema[name]
