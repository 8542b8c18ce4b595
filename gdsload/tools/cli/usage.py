"""Parsers of command lines: errors with a hint, help that fits the terminal, lists in one word.

Neither this module nor the code that builds the parsers imports torch: `gdsload --help` and completion must be quick.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from gdsload.tools.cli.faults import show_usage
from gdsload.tools.cli.terminal import columns, paint, say, wrapped

Commands = argparse._SubParsersAction  # noqa: SLF001 - argparse has no other name for what `add_subparsers` returns
OF_SOURCE = "source:"
"""The beginning of the names of a kind's options in the namespace."""
_WIDEST = 100
_SECOND = 26
_NARROWEST = 24
"""The least width of an explanation; if there is less room next to the name, it starts on the next line."""
_COLUMNS = re.compile(r" +\S.*? {2,}(?=\S)")


def help_width() -> int:
    """The width of all help."""
    return min(columns(), _WIDEST)


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help that fits the terminal; lines of descriptions and examples keep their indentation."""

    def __init__(self, prog: str) -> None:
        width = help_width()
        super().__init__(prog, max_help_position=_SECOND if width >= _SECOND + _NARROWEST else 6, width=width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + one for line in text.splitlines() for one in _fitted(line, width - len(indent)))

    def _format_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any) -> str:
        text = super()._format_usage(usage, actions, groups, prefix).strip()
        return "\n".join([*wrapped(text, self._width, rest=" " * 7), "", ""])


def entry(name: str, said: str, second: int = _SECOND) -> list[str]:
    """Lines of help: a name, and its explanation in a second column, or below it."""
    width = help_width()
    if width < second + _NARROWEST:
        return [f"  {name}", *wrapped(said, width, first=" " * 6, rest=" " * 6)]
    return wrapped(said, width, first=f"  {name:<{second - 4}}  ", rest=" " * second)


def _fitted(line: str, width: int) -> list[str]:
    """Wrap a line of a description or of examples. Commands are wrapped so that they can still be pasted."""
    columns = _COLUMNS.match(line)
    second = columns.end() if columns else 0  # where an explanation, and its continuation, begins
    left, right = line[:second].rstrip() or line, line[second:] if second else ""
    if not left.lstrip().startswith("gdsload "):
        return wrapped(line, width, rest=" " * second) or [""]
    if right and len(line) > width and width - second < _NARROWEST:
        return [*wrapped(right, width, first="  # ", rest="  # "), *_fitted(left, width)]
    if right:
        return wrapped(line, width, rest=" " * second)
    if len(left) <= width:
        return [left]
    words = re.sub(r"(--\S+) (?!-)", "\\1\N{NO-BREAK SPACE}", left)  # an option's value stays beside it
    lines = [one.replace("\N{NO-BREAK SPACE}", " ") for one in wrapped(words, width - 2, rest=" " * 6)]
    return [*(f"{one} \\" for one in lines[:-1]), lines[-1]]


class Parser(argparse.ArgumentParser):
    """A parser whose errors have a hint, and whose options are never abbreviated: new ones could change their meaning.

    Args:
        **options: see `argparse.ArgumentParser`; with `example`, command lines that the help ends with.
    """

    def __init__(self, *, example: str = "", **options: Any) -> None:
        options.setdefault("formatter_class", Formatter)
        if example:
            options["epilog"] = "examples:\n" + "\n".join(f"  {line}" for line in example.strip().splitlines())
        super().__init__(allow_abbrev=False, **options)

    def print_help(self, file: Any = None) -> None:
        """Show the help; see `say_help`."""
        say_help(self.format_help().rstrip().splitlines(), file)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print argparse's own messages, such as the version, like all others."""
        say(message.rstrip(), file)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that the option does not take, and name similar ones."""
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            listed = f"invalid value {value!r}. {meant(str(value), known)}Values are {', '.join(known)}"
            raise argparse.ArgumentError(action, listed)

    def error(self, message: str) -> NoReturn:
        """Show the error, and the command that lists the options; exit code 2."""
        show_usage(message.removeprefix("argument "), f"`{self.prog} --help` shows what it takes.")
        sys.exit(2)

    def refuse(self, extras: Sequence[str]) -> NoReturn:
        """Show that there is no such option, and a similar one; exit code 2."""
        unknown = next((word for word in extras if word.startswith("-") and word != "-"), None)
        if unknown is None:
            self.error(f"there is an argument too many: {', '.join(map(repr, extras))}")
        name = unknown.partition("=")[0]
        hint = meant(name, flags(self), quote="")
        others = ", `--help-source KIND` those of a kind" if "--help-source" in flags(self) else ""
        show_usage(f"{self.prog} has no option {name}", f"{hint}`{self.prog} --help` lists its options{others}.")
        sys.exit(2)


def say_help(lines: Iterable[str], file: Any = None) -> None:
    """Show lines of help, headings in bold on a terminal."""
    for line in lines:
        heading = line.endswith(":") and not line.startswith(" ")
        say(paint(line, "bold", file or sys.stdout) if heading else line, file)  # stdout changes if a pipe closes


def flags(parser: argparse.ArgumentParser) -> list[str]:
    """The options of a parser, as they are typed."""
    return [flag for action in parser._actions for flag in action.option_strings]  # noqa: SLF001 - there is no other way


def python_names(parser: argparse.ArgumentParser) -> dict[str, str]:
    """The first long flag of each option, by its name in Python."""
    found: dict[str, str] = {}
    for action in parser._actions:  # noqa: SLF001 - there is no other way
        long = [flag for flag in action.option_strings if flag.startswith("--")]
        if long:
            found.setdefault(action.dest.removeprefix(OF_SOURCE), long[0])
    return found


def meant(word: str, known: Iterable[str], *, quote: str = "'") -> str:
    """``"Did you mean 'convert'? "``, or nothing if nothing is like it."""
    found = difflib.get_close_matches(word, list(known), 2, 0.6)
    return f"Did you mean {' or '.join(f'{quote}{one}{quote}' for one in found)}? " if found else ""


def add_list(parser: argparse._ActionsContainer, flag: str, *, one: Callable[[str], Any] = str, **options: Any) -> None:
    """Add an option that takes several values: ``--fields a,b``, or repeated, or as JSON: ``--fields '["a,b"]'``.

    It takes one word, so that no argument after it is taken for a value; `one` makes a value of each part.
    """

    def listed(text: str) -> list[Any]:
        words = json.loads(text) if text.startswith("[") else text.split(",")
        return [one(str(word)) for word in words if word != ""]

    listed.__name__ = "list"  # for argparse's error
    parser.add_argument(flag, action="extend", type=listed, **options)


def as_count(text: str, at_least: int = 1) -> int:
    """A whole number of `at_least` or more, from a text."""
    if not text.isdecimal() or int(text) < at_least:
        raise argparse.ArgumentTypeError(f"{text} is no whole number from {at_least}")
    return int(text)


def as_seconds(text: str) -> float:
    """A time that something can take."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no time")
    return number


def script_folder() -> None:
    """Make modules of the current folder importable, as with ``python -m``: `--map` and `module:name` name them."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
