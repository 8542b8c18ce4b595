"""Errors as commands show them."""

import ast
import errno
import re
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import pytest

import gdsload
from gdsload.errors import FormatError, OptionError, Problem, SchemaError
from gdsload.tools.cli import make_parser
from gdsload.tools.cli.faults import as_typed, show_fault
from gdsload.tools.cli.source_options import add_source_options
from gdsload.tools.cli.usage import python_names

OPTIONS = {
    "on_error": "--on-error", "overwrite": "--overwrite", "fields": "--fields", "casts": "--cast", "size": "--size",
    "with_key": "--with-key", "workers": "--workers", "pack": "--pack",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ('Mend it, or pass `on_error="skip"` to go on.', "Mend it, or pass --on-error skip to go on."),
        ("Pass `overwrite=True`, or `with_key=False`.", "Pass --overwrite, or --no-with-key."),
        ("Pass `size=`, too, or a larger `workers`.", "Pass --size, too, or a larger --workers."),
        ("`fields=[...]`, `casts={...: 'int8'}`, `pack=...`", "--fields ..., --cast ..., --pack ..."),
        ("`workers=20` or `size='5%'`: then", "--workers 20 or --size 5%: then"),
        ("`fields=['a b', 'c']`.", "--fields 'a b,c'."),
        ("`fields=['a,b', 'c']`.", """--fields '["a,b", "c"]'."""),
        ("`fields=['a=b']`.", """--fields '["a=b"]'."""),
        ("`casts={'a': 'int8', 'b': 'uint8'}`, say", "--cast a=int8,b=uint8, say"),
        ("`casts={'a,b': 'int8'}`.", """--cast '{"a,b": "int8"}'."""),
        ("`casts={'a': 0, 'c': False}`.", """--cast '{"a": 0, "c": false}'."""),
        ("pass `size='\\t'`.", """pass --size '"\\t"'."""),
        ("say `pack={'field': 'ids', 'length': 4, 'dtype': 'int64'}`.", "say --pack ids:4:int64."),
        # What cannot be typed stays Python.
        ("Pass `map=`, say.", "Pass `map=`, say."),
        ("Pass `casts={'a`b': 'int8'}`.", "Pass `casts={'a`b': 'int8'}`."),
        ("`casts={'aaaaa`, cut short", "`casts={'aaaaa`, cut short"),
        # What is not marked stays.
        ("/data/size=3/on_error/x.parquet: the size is 3", "/data/size=3/on_error/x.parquet: the size is 3"),
    ],
)  # fmt: skip
def test_options_are_said_as_they_are_typed(text, typed):
    assert as_typed(text, OPTIONS) == typed
    assert as_typed(typed, OPTIONS) == typed


def shown(capsys, error, **how):
    show_fault(error, OPTIONS, **how)
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def test_what_why_and_what_to_do_are_lines_of_their_own(capsys):
    error = SchemaError("it is no number.", field="x", file="a.npy", remedy="Pass `casts={'x': 'int8'}`.")
    assert shown(capsys, error) == "error: a.npy, field 'x': it is no number\nhint: Pass --cast x=int8.\n"
    error = FormatError("row 3 cannot be converted", cause="field 'x': it is no number. Pass `size=3`")
    assert (
        shown(capsys, error) == "error: row 3 cannot be converted\ncause: field 'x': it is no number. Pass --size 3\n"
    )
    error = FormatError("not one sample can be made", cause="the first, row 0: KeyError: 'odd'")
    assert shown(capsys, error) == "error: not one sample can be made\ncause: the first, row 0: KeyError: 'odd'\n"
    assert shown(capsys, OptionError("it is no size")) == "error: it is no size\n"
    assert shown(capsys, OptionError("is 0", option="workers", file="f")) == "error: f: --workers is 0\n"
    assert shown(capsys, OptionError("is 0", option="length")) == "error: length is 0\n"


def test_problems_are_listed_as_far_as_they_can_be_read(capsys):
    error = FormatError("much is wrong", problems=[Problem(f"number {n}\x1b[2J", "f", n) for n in range(25)])
    lines = shown(capsys, error, more="--json").splitlines()
    assert lines[:2] == ["error: much is wrong", "  - f, byte 0: number 0 [2J"]
    assert lines[21:] == ["  - and 5 more in --json"]


def test_no_advice_has_two_full_stops():
    assert str(OptionError("this. Mend it.", remedy="Or that.")) == "this. Mend it. Or that."


@cache
def nodes():
    """The room, the place and the node of each text of the package."""
    folder = Path(gdsload.__file__).parent
    return [
        (file.relative_to(folder).parts[0], f"{file.relative_to(folder)}:{node.lineno}", node)
        for file in folder.rglob("*.py")
        if file.relative_to(folder).parts[0] not in ("tools", "testing")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value
    ]


OTHER_PROGRAMS = "conversion/sources/webdataset_tars.py", "system/probe/known_bugs.py"
"""Modules with commands of other programs."""


def test_options_are_marked():
    """The library writes options as Python does: the command line writes what is in backticks as it is typed."""
    _, commands = make_parser()
    add_source_options(commands["convert"])
    names = {name for parser in commands.values() for name in python_names(parser)}
    long = "|".join(name for name in names if "_" in name)  # no word of a sentence
    typed = r"(?<![\w-])--[a-z][a-z-]+"
    unmarked = rf"(?<![\w./`-])(?:(?:{'|'.join(names)})=|(?:{long})(?![\w`=]))|{typed}"
    found = [
        f"{place}: {node.value}"
        for room, place, node in nodes()
        if " " in node.value.strip()
        and re.search(unmarked if room in ("conversion", "shards") else typed, node.value)
        and not place.startswith(OTHER_PROGRAMS)
    ]
    assert not found


@pytest.mark.parametrize(
    ("refused", "said", "word", "hinted"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files", "ulimit -n", True),
        # The linker's error has no number: taken for that of a drive, it would send its user to look at that.
        (OSError("libcudart.so.12: No such file or directory"), "libcudart.so.12: No such file", "dmesg", False),
    ],
)
def test_what_the_system_refuses_in_a_command_is_one_error(cli, monkeypatch, refused, said, word, hinted):
    monkeypatch.setattr("gdsload.shards.catalog.open_catalog", Mock(side_effect=refused))
    error, hint = cli("verify", "shards", code=1).err.splitlines()
    assert error.startswith(f"error: the command cannot go on: {said}")
    assert (word in hint) == hinted
