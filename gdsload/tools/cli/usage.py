"""Parsers of command lines: errors with a hint, help that fits the terminal, lists that take no further arguments.

Neither this module nor the code that builds the parsers imports torch: `gdsload --help` and completion must be quick.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import json
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

from gdsload.tools.cli.faults import show_usage
from gdsload.tools.cli.terminal import paint, say, wrapped

__all__ = ["Commands", "Formatter", "Parser", "add_list", "as_count", "as_seconds", "flags", "given_back", "meant"]

T = TypeVar("T")
Commands = argparse._SubParsersAction  # noqa: SLF001 - argparse has no other name for what `add_subparsers` returns
_WIDEST = 100
# Messages of argparse, which are worded again with the argument, its value, and possible values.
_CHOICE = re.compile(r"argument (?:\S+/)?(\S+): invalid choice: '([^']*)' \(choose from (.*)\)")
_NUMBER = re.compile(r"argument (?:\S+/)?(\S+): invalid (int|float) value: '([^']*)'")
_COLUMNS = re.compile(r" +\S.*? {2,}(?=\S)")
_MISSING = re.compile(r"the following arguments are required: (.*)")


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help that fits the terminal; lines of descriptions and examples keep their indentation."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, _WIDEST)
        super().__init__(prog, max_help_position=26, width=width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        found = ((line, indent + " " * _second_column(line)) for line in text.splitlines())
        return "\n".join(one for line, rest in found for one in wrapped(line, width, rest=rest) or [""])


def _second_column(line: str) -> int:
    """The place where a line's second column, and its continuation, begins; 0 if the line is a sentence."""
    found = _COLUMNS.match(line)
    return found.end() if found else 0


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
        """Show the help, its headings in bold on a terminal."""
        stream: Any = file or sys.stdout
        for line in self.format_help().rstrip().splitlines():
            heading = line.endswith(":") and not line.startswith(" ")
            say(paint(line, "bold", stream) if heading else line, stream)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print argparse's own messages, such as the version, like all others."""
        say(message.rstrip(), file)

    def error(self, message: str) -> NoReturn:
        """Show the error, and the command that lists the options; exit code 2."""
        hint = ""
        if found := _CHOICE.fullmatch(message):
            name, word, listed = found.groups()
            known = re.findall(r"'([^']+)'", listed)
            message, hint = f"{name} cannot be {word!r}", f"{meant(word, known)}It is one of {', '.join(known)}. "
        elif found := _NUMBER.fullmatch(message):
            message = f"{found[1]} cannot be {found[3]!r}, which is no {'whole ' if found[2] == 'int' else ''}number"
        elif found := _MISSING.fullmatch(message):
            message = f"{found[1]} {'are' if ',' in found[1] else 'is'} missing"
        show_usage(message.removeprefix("argument "), f"{hint}`{self.prog} --help` shows what it takes.")
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


def flags(parser: argparse.ArgumentParser) -> list[str]:
    """The options of a parser, as they are typed."""
    return [flag for action in parser._actions for flag in action.option_strings]  # noqa: SLF001 - there is no other way


def meant(word: str, known: Iterable[str], *, quote: str = "'") -> str:
    """``"Did you mean 'convert'? "``, or nothing if nothing is like it."""
    found = difflib.get_close_matches(word, list(known), 2, 0.6)
    return f"Did you mean {' or '.join(f'{quote}{one}{quote}' for one in found)}? " if found else ""


class _Several(argparse.Action):
    """An option that takes one word, with commas in it, and may be repeated: so it takes no argument after it."""

    one: Callable[[str], Any] = str

    def knows(self, word: str) -> bool:
        """Return whether a word looks like a value, as a number does; a name may be anything."""
        try:
            return self.one is not str and self.one(word) is not None
        except (ValueError, argparse.ArgumentTypeError):
            return False

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        try:
            found = [self.one(word) for word in _words(values or "")]
        except argparse.ArgumentTypeError as error:
            parser.error(f"argument {option}: {error}")
        except ValueError:
            parser.error(f"argument {option}: {values!r} is no such list")
        before = getattr(namespace, self.dest)
        fresh = before is None or before is self.default
        setattr(namespace, self.dest, found if fresh else [*before, *found])


def _words(text: str) -> list[str]:
    if text.startswith("["):  # names with commas in them
        found = json.loads(text)
        return [str(word) for word in found]
    return [word for word in text.split(",") if word]


def add_list(
    parser: argparse._ActionsContainer, flag: str, *, one: Callable[[str], T] | None = None, **options: Any
) -> None:
    """Add an option that takes several values: ``--fields a,b``, or repeated, or as JSON: ``--fields '["a,b"]'``.

    Args:
        parser: what gets it.
        flag: its name.
        one: makes a value of a word.
        **options: as `add_argument` takes them.
    """
    action = parser.add_argument(flag, action=_Several, **options)
    assert isinstance(action, _Several)  # noqa: S101 - for the type checker
    if one is not None:
        action.one = one


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


def given_back(parser: Parser, chosen: argparse.Namespace, extras: list[str]) -> list[str]:
    """Words that are left, without those that follow the word of a list: ``SOURCE OUT --fields a b``, as it once was.

    Where such words were taken for arguments (``--sizes .5 .5 PATH OUT``), the command line is refused: if there are
    too many arguments, or if a word that was taken for one is a value of the list as well.

    Args:
        parser: the command's parser.
        chosen: what was read; the words are added to its lists.
        extras: what was left over, in order.

    Returns:
        What is left over still.
    """
    lists = {
        flag: action
        for action in parser._actions  # noqa: SLF001 - see `flags`
        if isinstance(action, _Several)
        for flag in action.option_strings
    }
    left = list(extras)
    too_many = bool(extras) and not any(word.startswith("-") for word in extras)
    line: list[str] = chosen.line
    for at, typed in enumerate(line):
        flag, equals, value = typed.partition("=")
        if flag not in lists:
            continue
        after = at + (1 if equals else 2)
        words = list(itertools.takewhile(lambda word: not word.startswith("-"), line[after:]))
        if words and words == left[: len(words)]:
            for word in words:
                lists[flag](parser, chosen, word, flag)
            del left[: len(words)]
        elif words and (too_many or lists[flag].knows(words[0])):
            said = f"there is an argument too many: {', '.join(map(repr, extras))}. " if too_many else ""
            hint = _separated(flag, value if equals else line[at + 1], words[0], parser)
            show_usage(said + _taken(parser, chosen, words[0]), hint)
            sys.exit(2)
    return left


def _taken(parser: Parser, chosen: argparse.Namespace, word: str) -> str:
    for action in parser._actions:  # noqa: SLF001 - see `flags`
        found = getattr(chosen, action.dest, None)
        if not action.option_strings and word in (found if isinstance(found, list) else [found]):
            return f"{word!r} is taken for {action.metavar}"
    return f"{word!r} is taken for an argument"


def _separated(flag: str, value: str, word: str, parser: Parser) -> str:
    """The error text for a second word after an option that takes one: several values have commas between them."""
    both = shlex.quote(f"{value},{word}")
    return (
        f"{flag} takes one word, which is {value!r}: several values have commas between them, {flag} {both}, or stand "
        f"after all arguments. `{parser.prog} --help` shows what it takes."
    )


def script_folder() -> None:
    """Make modules of the current folder importable, as with ``python -m``: `--map` and `module:name` name them."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
