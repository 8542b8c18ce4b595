"""The record of a benchmark as one page of HTML: no scripts, light and dark, on a phone as on a desk."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from gdsload.tools.bench.contents import (
    answers,
    bar_shares,
    cold_start,
    columns,
    conditions,
    limits,
    missing,
    remarks,
    shown_rows,
)  # fmt: skip
from gdsload.tools.bench.facts import STATES, State

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2327; --dim: #5f6b73; --paper: #fff; --line: #dfe3e6; --ours: #0b7a75;
  --other: #b0793f; --box: #eef6f5 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ea; --dim: #9aa5ac; --paper: #14181b; --line: #2f363b; --ours: #35b5ad; --other: #cf9a5f;
    --box: #1b2a29 } }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.3rem; overflow-wrap: anywhere } h2 { font-size: 1rem; margin: 2rem 0 .3rem }
.verdict { background: var(--box); border-left: 4px solid var(--ours); padding: .8rem 1rem; margin: 1rem 0 }
.verdict.unknown, .verdict.unavailable, .verdict.worse { border-color: var(--other) }
.verdict b { font-size: 1.1rem }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: .8rem 0 0 }
dt { color: var(--dim) } dd { margin: 0; overflow-wrap: anywhere }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th { color: var(--dim); font-weight: normal; text-align: right; white-space: nowrap }
td { border-top: 1px solid var(--line); text-align: right; white-space: nowrap }
th, td { padding: .25rem .4rem } td:first-child, th:first-child, td.text { text-align: left }
td.text { white-space: normal; color: var(--dim) }
td.bar { width: 35% } td.bar i { display: block; height: .8rem; background: var(--other); min-width: 1px }
tr.ours td.bar i { background: var(--ours) } tr.ours td:first-child { font-weight: 600 }
p { margin: .3rem 0 } p, small { color: var(--dim); overflow-wrap: anywhere } code { overflow-wrap: anywhere }
@media (max-width: 40rem) { .spare { display: none } dl { grid-template-columns: 1fr } dd { margin-bottom: .4rem } }
"""
_TITLES = {"cold": "Cold: first epochs, or data larger than memory", "hot": "Hot: epochs from the page cache"}
_SPARE = 3
"""Columns with this number or more are left out on a phone."""


def render_page(record: dict[str, Any]) -> str:
    """The page.

    Args:
        record: what `run_bench` returns, with its verdict.
    """
    title = escape(f"gdsload bench {record['dataset']['path']}")
    parts = [f"<h1>{title}</h1>", *_verdict(record)]
    parts += _facts("Limits", limits(record))
    parts += _facts("Cold start: a new loader", cold_start(record))
    for state in STATES:
        parts += _table(record, state)
    parts += ["<h2>How it was measured</h2>", _pairs(conditions(record).items())]
    parts += [f"<p><small>{escape(note)}</small></p>" for note in record["conditions"]["notes"]]
    parts.append(f"<p><small>{escape(record['when'])} · <code>{escape(record['command'])}</code></small></p>")
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _verdict(record: dict[str, Any]) -> Iterator[str]:
    found = record["verdict"]
    yield f'<div class="verdict {escape(found["gds"])}"><b>{escape(found["sentence"])}</b>'
    commands = [("Next", command) for command in found["next"]]
    yield f"{_pairs([*answers(record), *commands])}</div>"


def _pairs(entries: Any) -> str:
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(text)}</dd>' for name, text in entries)}</dl>"


def _facts(title: str, entries: list[tuple[str, str, str]]) -> Iterator[str]:
    if not entries:
        return
    yield f"<h2>{escape(title)}</h2>\n<table>"
    for name, value, remark in entries:
        text = '<td class="text">'
        yield f"<tr>{text}{escape(name)}</td><td>{escape(value)}</td>{text}{escape(remark)}</td></tr>"
    yield "</table>"


def _table(record: dict[str, Any], state: State) -> Iterator[str]:
    if record[state] is None:
        return
    yield f"<h2>{escape(_TITLES[state])}</h2>"
    rows = shown_rows(record, state)
    if not rows:
        yield f"<p>{escape(missing(record, state))}</p>"
        return
    names, rates, *others = columns(record, state)
    yield '<div class="scroll"><table>'
    titles = "".join(_cell("th", one.spare, one.title) for one in others)
    yield f"<tr><th></th><th>{escape(rates.title)}</th><th></th>{titles}</tr>"
    for number, (row, share) in enumerate(zip(rows, bar_shares(record, state), strict=True)):
        cells = "".join(_cell("td", one.spare, one.cells[number]) for one in others)
        ours = ' class="ours"' if row["kind"] == "gdsload" else ""
        bar = f'<td class="bar"><i style="width:{100 * share:.1f}%"></i></td>'
        yield f"<tr{ours}><td>{escape(names.cells[number])}</td><td>{escape(rates.cells[number])}</td>{bar}{cells}</tr>"
    yield "</table></div>"
    yield "".join(
        f"<p><small>{escape(text)}</small></p>"
        for text in filter(None, [record[state]["checked"], *remarks(record, state)])
    )


def _cell(tag: str, spare: int, text: str) -> str:
    kind = ' class="spare"' if spare >= _SPARE else ""
    return f"<{tag}{kind}>{escape(text)}</{tag}>"
