"""A dataset as text for people: in one line, as a table of its fields, and as HTML for notebooks."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from gdsload.shards.format.metadata import class_names
from gdsload.system.units import counted, format_bytes

if TYPE_CHECKING:
    from gdsload.loader.dataset import ShardDataset

_WIDTH = 100
_FIELDS = 40
_LEFT = 'style="text-align: left"'
_HEADINGS = ("field", "type", "size of a sample", "classes")


def brief(dataset: ShardDataset) -> str:
    """The dataset in one line, as a part of other texts."""
    return f"{type(dataset).__name__}({dataset.path!r}, {counted(len(dataset), 'sample')})"


def dataset_text(dataset: ShardDataset) -> str:
    """The dataset in lines: its size, and a table of its fields."""
    rows = [(name, kind, f"{size} a sample" if size else "", classes) for name, kind, size, classes in _rows(dataset)]
    widths = [max((len(row[place]) for row in rows), default=0) for place in range(4)]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n  ".join([f"{type(dataset).__name__}({dataset.path!r})", _size(dataset), *table, *_more(dataset)])


def dataset_html(dataset: ShardDataset) -> str:
    """The same for notebooks, where text of a dataset is never markup."""
    found = _rows(dataset)
    columns = 4 if any(row[3] for row in found) else 3  # without classes there is no column of them
    head = "".join(f"<th {_LEFT}>{name}</th>" for name in _HEADINGS[:columns])
    rows = ["".join(f"<td {_LEFT}>{escape(cell)}</td>" for cell in row[:columns]) for row in found]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    said = "<br>".join(map(escape, [_size(dataset), *_more(dataset)]))
    return (
        f"<div><b>{escape(type(dataset).__name__)}</b> <code>{escape(dataset.path)}</code><br>{said}"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _size(dataset: ShardDataset) -> str:
    samples, shards = counted(len(dataset), "sample"), counted(len(dataset.sources), "shard")
    return f"{samples}, {format_bytes(dataset.num_bytes)} in {shards}"


def _rows(dataset: ShardDataset) -> list[tuple[str, str, str, str]]:
    """For each field its name, type, size and classes."""
    names = class_names(dataset.metadata)
    rows = []
    for name, field in list(dataset.schema.items())[:_FIELDS]:
        known = [_printable(one) for one in names.get(name, [])]
        between = textwrap.shorten(" … ".join(dict.fromkeys((*known[:1], *known[-1:]))), 50, placeholder="…")
        classes = f"{len(known)} {'class' if len(known) == 1 else 'classes'}: {between}" if known else ""
        size = "" if field.ragged else format_bytes(field.row_bytes)
        rows.append((_printable(name), str(field).removesuffix(" []"), size, classes))
    return rows


def _printable(text: str) -> str:
    """Text of a dataset, which must not move a terminal's cursor."""
    return text if text.isprintable() else repr(text)


def _more(dataset: ShardDataset) -> list[str]:
    left = len(dataset.schema) - _FIELDS
    return [f"and {counted(left, 'field')} more"] if left > 0 else []


def entries_text(title: str, entries: Sequence[tuple[str, str]]) -> str:
    """Lines of names and what is said of each, wrapped beside them."""
    wide = max((len(name) for name, _ in entries), default=0) + 4
    lines = [title]
    for name, said in entries:
        lines += textwrap.wrap(
            said, _WIDTH, initial_indent=f"  {name:<{wide - 2}}", subsequent_indent=" " * wide, break_on_hyphens=False
        )
    return "\n".join(lines)


def entries_html(title: str, entries: Sequence[tuple[str, str]]) -> str:
    """The same for notebooks."""
    rows = "".join(f"<tr><th {_LEFT}>{escape(name)}</th><td {_LEFT}>{escape(said)}</td></tr>" for name, said in entries)
    return f"<div><b>{escape(title)}</b><table><tbody>{rows}</tbody></table></div>"
