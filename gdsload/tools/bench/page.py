"""The record of a benchmark as one HTML page without scripts, for light and dark mode and small screens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from gdsload.tools.bench import contents
from gdsload.tools.bench.facts import STATES, State
from gdsload.tools.web_page import as_text, web_page

_STYLE = """
body { max-width: 60rem }
h1 { font-size: 1.3rem } h2 { font-size: 1rem; margin: 2rem 0 .3rem }
.verdict { background: var(--box); border-left: 4px solid var(--ours); padding: .8rem 1rem; margin: 1rem 0 }
.verdict.unknown, .verdict.unavailable, .verdict.worse { border-color: var(--other) }
.verdict b { font-size: 1.1rem }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: .8rem 0 0 }
dt { color: var(--dim) } dd { margin: 0; overflow-wrap: anywhere }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th { color: var(--dim); font-weight: normal; text-align: right; white-space: nowrap }
td { border-top: 1px solid var(--line); text-align: right; white-space: nowrap }
th, td { padding: .25rem .4rem } td:first-child, th:first-child { text-align: left }
td.bar { width: 30%; min-width: 3.5rem }
td.bar i { display: block; height: .8rem; background: var(--other); min-width: 1px }
tr.ours td.bar i { background: var(--ours) } tr.ours td:first-child { font-weight: 600 }
p { margin: .3rem 0 } p, small { color: var(--dim); overflow-wrap: anywhere } code { overflow-wrap: anywhere }
@media (max-width: 40rem) { .spare { display: none } th, td { padding: .25rem }
  dl { grid-template-columns: 1fr } dd { margin-bottom: .4rem } }
"""
_TITLES = {"cold": "Cold: first epochs, or data larger than memory", "hot": "Hot: epochs from the page cache"}
_SPARE = 2
"""Columns with this number or more are left out on a phone."""


def render_page(record: dict[str, Any]) -> str:
    """The page of a record of `run_bench` with its verdict."""
    title = f"gdsload bench {record['dataset']['path']}"
    parts = [f"<h1>{as_text(title)}</h1>", *_verdict(record)]
    for name, entries in (("Limits", contents.limits(record)), ("Cold start", contents.cold_start(record))):
        facts = [(what, ", ".join(filter(None, (value, remark)))) for what, value, remark in entries]
        parts += [f"<h2>{name}</h2>", _pairs(facts)] if facts else []
    for state in STATES:
        parts += _table(record, state)
    parts += ["<h2>How it was measured</h2>", _pairs(contents.conditions(record).items())]
    parts += [f"<p><small>{as_text(note)}</small></p>" for note in contents.notes(record)]
    parts.append(f"<p><small>{as_text(record['when'])} · <code>{as_text(record['command'])}</code></small></p>")
    return web_page(title, _STYLE, "\n".join(parts))


def _verdict(record: dict[str, Any]) -> Iterator[str]:
    found = record["verdict"]
    yield f'<div class="verdict {as_text(found["gds"])}"><b>{_prose(found["sentence"])}</b>'
    commands = [("Next", command) for command in found["next"]]
    yield f"{_pairs([*contents.answers(record), *commands])}</div>"


def _pairs(entries: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{as_text(name)}</dt><dd>{_prose(text)}</dd>' for name, text in entries)}</dl>"


def _prose(text: str) -> str:
    """A sentence, with what is in backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", as_text(text))


def _table(record: dict[str, Any], state: State) -> Iterator[str]:
    if record[state] is None:
        return
    yield f"<h2>{as_text(_TITLES[state])}</h2>"
    rows = contents.shown_rows(record, state)
    if not rows:
        yield f"<p>{as_text(contents.missing(record, state))}</p>"
        return
    found = contents.columns(record, state)
    yield '<div class="scroll"><table>'
    for number, share in enumerate([None, *contents.bar_shares(record, state)], -1):  # -1: the headings
        tag, cells = "th" if share is None else "td", []
        for one in found:
            text = as_text(one.title if share is None else one.cells[number])
            kind = ' class="spare"' if one.spare >= _SPARE else ""
            cells.append(f"<{tag}{kind}>{text}</{tag}>")
        bar = f'<td class="bar"><i style="width:{100 * (share or 0):.1f}%"></i></td>'
        cells.insert(3, "<th></th>" if share is None else bar)
        kind = ' class="ours"' if share is not None and rows[number]["kind"] == "gdsload" else ""
        yield f"<tr{kind}>{''.join(cells)}</tr>"
    yield "</table></div>"
    yield "".join(
        f"<p><small>{as_text(text)}</small></p>"
        for text in filter(None, [record[state]["checked"], *contents.remarks(record, state)])
    )
