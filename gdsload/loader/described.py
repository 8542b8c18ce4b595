"""Descriptions of datasets: in one line, as a table of the fields, and as HTML for notebooks."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from gdsload.shards.format.metadata import Metadata, class_names
from gdsload.shards.format.schema import Schema
from gdsload.system.units import counted, format_bytes

if TYPE_CHECKING:
    from gdsload.loader.dataset import ShardDataset

_WIDTH = 100
_FIELDS = 40
_SHOWN = 200
"""The most characters of a name that are shown."""
_LEFT = 'style="text-align: left"'
HEADINGS = ("field", "type", "bytes per sample", "classes")


def brief(dataset: ShardDataset) -> str:
    """The dataset in one line, as a part of other texts."""
    return f"{type(dataset).__name__}({dataset.path!r}, {counted(len(dataset), 'sample')})"


def field_rows(schema: Schema, metadata: Metadata) -> list[tuple[str, ...]]:
    """A row per field: its name, type, bytes per sample, and classes if any field has classes."""
    names = class_names(metadata)
    rows: list[tuple[str, ...]] = []
    for name, field in schema.items():
        known = [_printable(one) for one in names.get(name, [])]
        between = textwrap.shorten(" … ".join(dict.fromkeys((*known[:1], *known[-1:]))), 50, placeholder="…")
        classes = f"{len(known)} {'class' if len(known) == 1 else 'classes'}: {between}" if known else ""
        size = "varies" if field.is_string else f"{format_bytes(field.row_bytes)}{' a row' if field.ragged else ''}"
        rows.append((_printable(name), str(field).removesuffix(" []"), size, classes))
    return rows if any(row[3] for row in rows) else [row[:3] for row in rows]


def _printable(text: str) -> str:
    """The text of a dataset, cut, and escaped if it could move a terminal's cursor."""
    text = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
    return text if text.isprintable() else repr(text)


def dataset_text(dataset: ShardDataset) -> str:
    """The dataset in lines: its size, and a table of its fields."""
    size, rows, more = _parts(dataset)
    return "\n  ".join([f"{type(dataset).__name__}({dataset.path!r})", size, *table(rows), *more])


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table with columns of one width each; all rows are as long."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def dataset_html(dataset: ShardDataset) -> str:
    """The same for notebooks, where text of a dataset is never markup."""
    size, (_, *rows), more = _parts(dataset)
    head = "".join(f"<th {_LEFT}>{name}</th>" for name in HEADINGS[: len(rows[0])])
    cells = ("".join(f"<td {_LEFT}>{escape(cell)}</td>" for cell in row) for row in rows)
    title = f"<b>{escape(type(dataset).__name__)}</b> <code>{escape(dataset.path)}</code><br>{escape(size)}"
    return _html(title, f"<thead><tr>{head}</tr></thead>", cells, "".join(more))


def _html(title: str, head: str, rows: Iterable[str], foot: str = "") -> str:
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<div>{title}<table>{head}<tbody>{body}</tbody></table>{foot}</div>"


def _parts(dataset: ShardDataset) -> tuple[str, list[tuple[str, ...]], list[str]]:
    """The size of a dataset, the rows of its fields with headings, and the number of fields that are left out."""
    rows = field_rows(dataset.schema, dataset.metadata)
    samples, shards = counted(len(dataset), "sample"), counted(len(dataset.sources), "shard")
    size = f"{samples}, {format_bytes(dataset.num_bytes)} in {shards}"
    more = [f"and {counted(len(rows) - _FIELDS, 'field')} more"] if len(rows) > _FIELDS else []
    return size, [HEADINGS[: len(rows[0])], *rows[:_FIELDS]], more


def entries_text(title: str, entries: Sequence[tuple[str, str]]) -> str:
    """A title and a line per entry: its name, and its text wrapped in a column."""
    wide = max((len(name) for name, _ in entries), default=0) + 4
    lines = [title]
    for name, said in entries:
        lines += textwrap.wrap(
            said, _WIDTH, initial_indent=f"  {name:<{wide - 2}}", subsequent_indent=" " * wide, break_on_hyphens=False
        )
    return "\n".join(lines)


def entries_html(title: str, entries: Sequence[tuple[str, str]]) -> str:
    """The same for notebooks."""
    rows = (f"<th {_LEFT}>{escape(name)}</th><td {_LEFT}>{escape(said)}</td>" for name, said in entries)
    return _html(f"<b>{escape(title)}</b>", "", rows)
