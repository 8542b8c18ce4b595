"""The parts of the site that are no Markdown: the help of commands, llms.txt of the same pages, and a redirect."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from gdsload.tools.cli import make_parser

HELP_MARK = "<!-- help of each command -->"
START = "docs/index"
LEAD = '<!doctype html><meta charset="utf-8"><title>gdsload</title><meta http-equiv="refresh" content="0; url={0}">'


def pages(root: Path) -> list[Path]:
    """The pages of the site, in the order of the start page's tables of contents."""
    text = (root / f"{START}.md").read_text(encoding="utf-8")
    found = [root / f"{START}.md"]
    for block in re.findall(r"^```\{toctree\}\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            found += sorted((root / "docs").glob(f"{line}.md")) if line and line[0] != ":" else []
    return found


def write_llms(root: Path, out: Path) -> None:
    """Write llms.txt, the index of all pages for programs that read, and llms-full.txt, the user's pages in one."""
    lines, whole = ["# gdsload", "", f"> {_first(root / f'{START}.md')}", "", "## Pages", ""], []
    for file in pages(root):
        name = file.resolve().relative_to(root.resolve()).as_posix()
        text = file.read_text(encoding="utf-8")
        title = text.partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}](_sources/{name}): {_first(file)}")
        whole.append(text)
    (out / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (out / "llms-full.txt").write_text("\n".join(whole), encoding="utf-8")


def with_help(page: str) -> str:
    """The page on the command line, with the help of each command in the place of its mark."""
    os.environ |= {"COLUMNS": "96", "NO_COLOR": "1"}
    _, commands = make_parser()
    said = (f"### gdsload {name}\n```text\n{parser.format_help()}```\n" for name, parser in commands.items())
    return page.replace(HELP_MARK, "\n".join(said))


def copy_pictures(root: Path, out: Path) -> None:
    """Copy the pictures that pages show by HTML, which Sphinx does not see."""
    folder = out / "benchmarks/results"
    folder.mkdir(parents=True, exist_ok=True)
    for picture in (root / "benchmarks/results").glob("*.svg"):
        shutil.copy(picture, folder)


def write_start(out: Path) -> None:
    """Write the page at the site's root, which leads to the start page."""
    (out / "index.html").write_text(LEAD.format(f"{START}.html") + "\n", encoding="utf-8")


def _first(page: Path) -> str:
    """The first sentence of a page's text, without its links."""
    text = re.sub(r"(?ms)^```.*?^```$|^    .*?$|^#.*?$", "", page.read_text(encoding="utf-8"))
    kept = [part for part in text.split("\n\n") if part.strip() and part.strip()[0] not in "<!-|:"]
    sentence = re.split(r"(?<=\.)\s", " ".join(kept[0].split()), maxsplit=1)[0] if kept else ""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", sentence)
