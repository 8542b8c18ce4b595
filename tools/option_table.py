"""The options of `gdsload.DataLoader` as a table for docs/reference.md, from its signature and docstring.

python -m tools.option_table            prints it
python -m tools.option_table --write    puts it into the page, between the two comments there
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import gdsload

PAGE = Path(__file__).resolve().parent.parent / "docs/reference.md"
BEGIN, END = "<!-- options: python -m tools.option_table --write -->\n", "<!-- end of options -->\n"


def option_table() -> str:
    """A row for each keyword: name, type, default and meaning."""
    meaning = _documented(inspect.getdoc(gdsload.DataLoader) or "")
    rows = ["| option | type | default | meaning |", "|---|---|---|---|"]
    for name, option in inspect.signature(gdsload.DataLoader).parameters.items():
        if option.kind is inspect.Parameter.VAR_KEYWORD:
            rows.append(f"| others | | | {meaning[f'**{name}']} |")
            continue
        default = "" if option.default is inspect.Parameter.empty else _code(repr(option.default))
        rows.append(f"| `{name}` | {_code(option.annotation)} | {default} | {meaning[name]} |")
    return "\n".join(rows) + "\n"


def with_table(page: str) -> str:
    """The page with the table of now."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + option_table() + END + rest.partition(END)[2]


def _documented(text: str) -> dict[str, str]:
    """The entries below "Args:", each in one line."""
    section = text.partition("Args:\n")[2].partition("\n\n")[0]
    entries = re.split(r"^ {4}(?=\S)", section, flags=re.MULTILINE)[1:]
    named = (entry.partition(": ") for entry in entries)
    return {name: " ".join(rest.split()).replace("``", "`").replace("|", "\\|") for name, _, rest in named}


def _code(text: str) -> str:
    return "`" + text.replace("'", '"').replace("|", "\\|") + "`"


def main(arguments: list[str]) -> int:
    """Print the table, or write it into the page."""
    if arguments == ["--write"]:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    elif arguments:
        print(f"unknown arguments: {' '.join(arguments)}")
        return 2
    else:
        print(option_table(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
