"""The frame of the pages that commands write: one file, no scripts, light and dark, on a phone as on a desk."""

from __future__ import annotations

from html import escape

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


def web_page(title: str, style: str, body: str) -> str:
    """A page.

    Args:
        title: its title, as text.
        style: CSS beside the frame's own, which has colours by name: `--ink`, `--dim`, `--paper`, `--line`, `--box`
            below text, and `--ours` and `--other` for bars.
        body: the elements in it, in HTML.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )
