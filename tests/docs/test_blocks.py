"""The code of the site's pages runs, block after block, in a folder that has what it names; or a remark says why not."""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gdsload.tools.cli import main, make_parser
from gdsload.tools.cli.usage import flags
from tests.docs.workspace import prepare, stand_ins

ROOT = Path(__file__).parents[2]
ALONE = {"monitoring"}  # whose blocks have tests of their own
PAGES = [page for page in sorted(ROOT.glob("docs/*.md")) if page.stem not in ALONE]
FENCED = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
REMARK = re.compile(r"<!-- not run: [^>]{4,} -->\n\s*\Z")
RUN = ("python", "console")
NEEDS = {"coming-from": "datasets", "convert": "soundfile"}
REPLACES = ("convert", "merge", "split", "reshard")  # pages write one folder many times


class Block(NamedTuple):
    line: int
    language: str
    text: str
    runs: bool


def blocks(text: str) -> Iterator[Block]:
    for found in FENCED.finditer(text):
        lines = [line.removeprefix(found[1]) for line in found[3].splitlines()]
        yield Block(text.count("\n", 0, found.start()) + 1, found[2], "\n".join(lines),
                    found[2] in RUN and REMARK.search(text[: found.start()]) is None)  # fmt: skip


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    pytest.importorskip("PIL", reason="pages convert pictures")
    folder = tmp_path_factory.mktemp("pages")
    prepare(folder)
    return folder


@pytest.fixture
def workspace(prepared, tmp_path, monkeypatch):
    """A copy for each page, which writes into it; it is the working folder."""
    shutil.copytree(prepared, tmp_path / "of")
    monkeypatch.chdir(tmp_path / "of")


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")  # torch 2.11 on a GPU
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page, workspace):
    if page.stem in NEEDS:
        pytest.importorskip(NEEDS[page.stem])
    found = [block for block in blocks(page.read_text(encoding="utf-8")) if block.runs]
    names = stand_ins() if found else {}
    for block in found:
        if block.language == "python":
            exec(compile("\n" * block.line + block.text, page, "exec"), names)
        else:
            for words in commands(block.text):
                assert exit_code(words) == 0, f"{page.name}:{block.line}: {words}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_have_the_options_that_a_page_gives_them(page):
    _, known = make_parser()
    for block in blocks(page.read_text(encoding="utf-8")):
        for words in commands(block.text) if block.language == "console" else ():
            parser = known[words[0]]
            if late := parser.get_default("late"):
                late(parser)
            given = {word.partition("=")[0] for word in words[1:] if word.startswith("--")}
            assert given <= set(flags(parser)), f"{page.name}:{block.line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_configuration_in_a_page_parses(page):
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language in ("json", "yaml"):  # JSON is YAML, too
            assert isinstance(pytest.importorskip("yaml").safe_load(block.text), dict)


def exit_code(words: list[str]) -> int:
    try:
        return main([*words, *["--overwrite"] * (words[0] in REPLACES)])
    except SystemExit as ended:
        return ended.code


def commands(text: str) -> list[list[str]]:
    """The words of the lines that call gdsload; any other line may stand only where a remark says why it does not run."""
    lines = [shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines()]
    return [line[1:] for line in lines if line and line[0] == "gdsload"]


def test_a_block_that_neither_runs_nor_says_why_not_is_found():
    page = "```python\nx = 1\n```\n\n<!-- not run: needs cuda -->\n```python\ny\n```\n<!-- later -->\n```console\nls\n```\n"
    assert [block.runs for block in blocks(page)] == [True, False, True]
