"""The frame of HTML pages that commands write: one file without scripts, for light and dark mode and small screens."""

from __future__ import annotations

from html import escape

from gdsload.tools.cli.terminal import plain

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2327; --dim: #5f6b73; --paper: #fff; --line: #dfe3e6; --ours: #0b7a75;
  --other: #b0793f; --box: #eef6f5 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ea; --dim: #9aa5ac; --paper: #14181b; --line: #2f363b; --ours: #35b5ad; --other: #cf9a5f;
    --box: #1b2a29 } }
body { margin: 0 auto; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif }
h1 { overflow-wrap: anywhere }
"""


def as_text(text: str) -> str:
    """Escape a text, which may be of a dataset, so that it is never markup."""
    return escape(plain(text))


def web_page(title: str, style: str, body: str) -> str:
    """An HTML page, with a title as text, CSS in addition to the frame's, and the HTML of the body.

    The style may use the colours `--ink`, `--dim`, `--paper`, `--line`, `--box` (the background of boxes), and `--ours`
    and `--other` for bars.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{as_text(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )
