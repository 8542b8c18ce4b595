"""The fields that the columns of an Arrow table become, and the columns that cannot become fields."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypedDict

from gdsload.conversion.row_source import check_columns, check_fields, choice_of
from gdsload.conversion.source import FieldChoice
from gdsload.conversion.sources.extras import need
from gdsload.errors import FormatError, OptionError

_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
"""The name that pandas gives the column of an index without a name, in Parquet and in Arrow's tables."""


class ColumnOptions(TypedDict, total=False):
    """The options that all kinds of tables have.

    Attributes:
        fill: what stands for a missing value, by field: ``{"age": -1}``.
        as_json: columns that become texts of JSON, whatever is in them.
        decimals: what decimal numbers become: ``"float64"``, or ``"scaled"``, whole numbers of their last digit.
    """

    fill: Mapping[str, Any] | None
    as_json: Sequence[str]
    decimals: Literal["float64", "scaled"] | None


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column, or a part of a column of structs, that a field is made of.

    Attributes:
        name: the field's.
        path: the column's name, and those of the parts of structs.
        kind: its Arrow type.
        json: whether it becomes a text of JSON.
        fill: what stands for a missing value; None: nothing does.
        decimals: what decimal numbers become.
        nan: whether missing floating-point numbers are NaN.
    """

    name: str
    path: tuple[str, ...]
    kind: Any
    json: bool = False
    fill: Any = None
    decimals: str | None = None
    nan: bool = True


@dataclass(frozen=True)
class TableForm:
    """The form of the fields that a table becomes; picklable: see `ColumnOptions`.

    Attributes:
        fields: the fields that are wanted; None: all of them.
        nan: whether missing floating-point numbers are NaN.
    """

    fields: tuple[str, ...] | None = None
    fill: Mapping[str, Any] = field(default_factory=dict)
    as_json: Sequence[str] = ()
    decimals: str | None = None
    nan: bool = True

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> TableForm:
        """The form that the options of a source give."""
        given = {name: options.get(name) for name in ColumnOptions.__annotations__}
        return cls(**{name: value for name, value in given.items() if value is not None})

    def to_json(self) -> dict[str, Any]:
        """The options that the result depends on, besides the fields."""
        return {"fill": dict(self.fill), "as_json": list(self.as_json), "decimals": self.decimals}

    def leaves(self, schema: Any, file: str, but: Sequence[str] = ()) -> list[Leaf]:
        """The columns, or parts of columns, that fields are made of, in the order of an Arrow schema.

        The types of some columns, `but`, are not checked: images and sounds.

        Raises:
            OptionError: if a field that was named does not exist, or a value to fill it with does not fit.
            FormatError: if one that is wanted cannot be made, with all that can and all that cannot; or if two have one
                name.
        """
        found = [leaf for column in schema for leaf in self._within(column.type, (column.name,), but)]
        names = [leaf.name for leaf in found]
        twice = sorted(name for name, times in Counter(names).items() if times > 1)
        if twice:
            raise FormatError(f"two columns are called {twice[0]!r}", file=file)
        by_name = {leaf.name: leaf for leaf in found}
        check_fields([*self.as_json, *self.fill], names, file)
        wanted = [by_name[name] for name in check_columns(self.fields, names, file)]
        self._refuse([leaf for leaf in wanted if leaf.name not in but], found, file)
        return [self._filled(leaf, file) for leaf in wanted]

    def without_index(self, schema: Any) -> Any:
        """A schema without the index of pandas that has no name, unless its column is named, or there is no other."""
        names = _unnamed_indexes(schema)
        if self.fields is not None or len(names) == len(schema):
            return schema
        return need("pyarrow").schema([one for one in schema if one.name not in names], schema.metadata)

    def index_notes(self, schema: Any) -> list[str]:
        """Notes for users on the indexes that `without_index` leaves out."""
        left_out = len(schema) > len(self.without_index(schema))
        return [
            f"the index of pandas has no name and is left out: `fields=[...]` with {name!r} takes it, as a name does"
            for name in (_unnamed_indexes(schema) if left_out else ())
        ]

    def _within(self, kind: Any, path: tuple[str, ...], but: Sequence[str]) -> Iterator[Leaf]:
        name = ".".join(path)
        is_struct = need("pyarrow").types.is_struct(kind) and name not in self.as_json and name not in but
        if not is_struct or is_encoded(kind):
            yield Leaf(name, path, kind, json=name in self.as_json, decimals=self.decimals, nan=self.nan)
            return
        for position in range(kind.num_fields):
            yield from self._within(kind.field(position).type, (*path, kind.field(position).name), but)

    def _refuse(self, wanted: list[Leaf], there: list[Leaf], file: str) -> None:
        bad = [leaf for leaf in wanted if _trouble(leaf)]
        if not bad:
            return
        good = [leaf.name for leaf in (wanted if self.fields else there) if not _trouble(leaf)]
        listed = "; ".join(f"{leaf.name!r} ({leaf.kind!s:.200}): {_trouble(leaf)}" for leaf in bad)
        ways = f"Take others, {choice_of(good)}; or keep" if good else "Keep"
        raise FormatError(
            f"no field can have these columns: {listed}",
            file=file,
            remedy=f"{ways} what is in them as a text of JSON, "
            f"`as_json={[leaf.name for leaf in bad]}`; or pass `decimals='float64'` or 'scaled' for decimal numbers.",
        )

    def _filled(self, leaf: Leaf, file: str) -> Leaf:
        if leaf.name not in self.fill:
            return leaf
        arrow, value = need("pyarrow"), self.fill[leaf.name]
        kind = arrow.int64() if _unit(leaf.kind) else inner_type(leaf.kind)
        kind = kind.value_type if arrow.types.is_dictionary(kind) else kind
        try:
            if isinstance(value, str) and arrow.types.is_floating(kind):
                value = float(value)  # nan and inf, which JSON has not
            fits = arrow.scalar(value, kind).as_py() == value or not arrow.types.is_integer(kind)
            if not fits or value is None:
                raise ValueError("it is no whole number" if value is not None else "it stands for nothing")
        except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise OptionError(
                f"has {value!r:.100} for field {leaf.name!r}, which is {kind!s:.100}: {str(error)[:100]}",
                option="fill",
                file=file,
                remedy="Fill it with a value of that type.",
            ) from None
        return replace(leaf, fill=value)

    def notes(self, leaves: Sequence[Leaf]) -> list[str]:
        found = []
        for leaf in leaves:
            if unit := _unit_of(leaf):
                found.append(f"{leaf.name!r} is int64, {unit}")
            if is_encoded(leaf.kind):
                found.append(f"{leaf.name!r} has the bytes of the files as they are")
        return found


class TableSource(FieldChoice):
    """Base of sources of tables: columns that no field is made of are left out of their form, too."""

    table_form: TableForm

    def only(self, fields: Sequence[str]) -> Self:
        found = super().only(fields)
        found.table_form = replace(self.table_form, fields=tuple(fields))
        return found

    def notes(self) -> list[str]:
        return self.table_form.notes(self._leaves())

    def metadata(self) -> dict[str, Any]:
        """The source's part of the dataset's metadata: the units of whole numbers made of times or decimals."""
        units = units_of(self._leaves())
        return {"units": units} if units else {}

    def _leaves(self) -> list[Leaf]:
        """The columns that fields are made of."""
        raise NotImplementedError


def units_of(leaves: Sequence[Leaf]) -> dict[str, str]:
    """The units of fields of whole numbers that are made of times or decimal numbers, by field."""
    return {leaf.name: unit for leaf in leaves if (unit := _unit_of(leaf))}


def _unnamed_indexes(schema: Any) -> list[str]:
    return [name for name in schema.names if _UNNAMED_INDEX.fullmatch(name)]


def extended(kind: Any) -> bool:
    """Return whether a type is one of Arrow's extensions."""
    return isinstance(kind, need("pyarrow").BaseExtensionType)


def is_list(kind: Any) -> bool:
    """Return whether a type is a list, of any length or of a fixed one."""
    types = need("pyarrow").types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_text(kind: Any) -> bool:
    """Return whether the values of a type are texts or bytes."""
    types = need("pyarrow").types
    tests = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view", "fixed_size_binary")
    return any(getattr(types, f"is_{test}")(kind) for test in tests)


def is_encoded(kind: Any) -> bool:
    """Return whether a type is a file with its name as `datasets` has it: ``struct<bytes: binary, path: string>``."""
    types = need("pyarrow").types
    if not types.is_struct(kind) or kind.num_fields != 2:
        return False
    inner = {kind.field(position).name: kind.field(position).type for position in range(2)}
    return inner.keys() == {"bytes", "path"} and is_text(inner["bytes"])


def inner_type(kind: Any) -> Any:
    """The type of the values in nested lists and extensions, however deep."""
    while True:
        if extended(kind):
            kind = kind.storage_type
        elif is_list(kind):
            kind = kind.value_type
        else:
            return kind


def _unit_of(leaf: Leaf) -> str | None:
    """The unit of a field's whole numbers, if they are made of times or decimal numbers; else None."""
    if leaf.json:
        return None
    kind = inner_type(leaf.kind)
    if need("pyarrow").types.is_decimal(kind) and leaf.decimals == "scaled":
        return f"units of 10 to the power of {-kind.scale}"
    return _unit(leaf.kind)


def _unit(kind: Any) -> str | None:
    """The unit of whole numbers of a temporal type; None for other types."""
    if getattr(kind, "extension_name", None) == "pandas.period":
        return f"periods of pandas' frequency {kind.freq!r} since 1970-01-01"
    types, kind = need("pyarrow").types, inner_type(kind)
    if types.is_timestamp(kind):
        zone = "UTC" if kind.tz else "no time zone"
        return f"{_UNITS[kind.unit]} since 1970-01-01 ({zone})"
    if types.is_date(kind):
        return f"{'days' if types.is_date32(kind) else 'milliseconds'} since 1970-01-01"
    if types.is_time(kind):
        return f"{_UNITS[kind.unit]} since midnight"
    return _UNITS[kind.unit] if types.is_duration(kind) else None


_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def _trouble(leaf: Leaf) -> str | None:
    """Why no field can be made of a column."""
    types, kind = need("pyarrow").types, leaf.kind
    if leaf.json or is_encoded(kind):
        return None
    if extended(kind) and None in (getattr(kind, "shape", None) or ()):
        return f"its tensors of shape {list(kind.shape)} vary"
    order = list(getattr(kind, "permutation", None) or ())
    if order != sorted(order):  # and pyarrow writes the inverse of what it reads
        return f"the dimensions of its tensors are in memory in another order, {order}"
    if types.is_dictionary(kind):
        kind = kind.value_type
    if is_text(kind):
        return None
    inner = inner_type(kind)
    if types.is_decimal(inner):
        return None if leaf.decimals else "decimal numbers are neither whole nor floating-point ones"
    if types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner) or _unit(inner):
        return None
    if is_text(inner):
        return "a field has one text for each sample, not a list of them"
    return "fields are numbers, lists of numbers, text and bytes"
