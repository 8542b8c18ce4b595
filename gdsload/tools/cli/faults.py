"""Errors as commands show them: what, why and what to do on separate lines, with options as they are typed.

Texts of the library have options as Python writes them, in backticks: `` `fields=['a', 'b']` ``. `as_typed` turns them
into ``--fields a,b``.
"""

from __future__ import annotations

import ast
import copy
import json
import re
import shlex
import sys
from collections.abc import Mapping

from gdsload.errors import FormatError, GdsloadError
from gdsload.tools.cli.terminal import paint, plain, say, terminal_width, wrapped

_SHOWN = 20
_OPTION = re.compile(r"`(\w+)(?:=([^`]*))?`")


def as_typed(text: str, options: Mapping[str, str]) -> str:
    """A sentence with its options as they are typed; options that the command does not have stay Python.

    `options` has how each is typed, by its name in Python: ``{"on_error": "--on-error"}``.
    """
    return _OPTION.sub(lambda found: _typed(options[found[1]], found) if found[1] in options else found[0], text)


def _typed(flag: str, option: re.Match[str]) -> str:
    text = option[2] or "True"
    if text in ("True", "False"):
        return flag if text == "True" else f"--no-{flag[2:]}"
    if "..." in text:
        return f"{flag} ..."
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):  # cut short, or no literal
        return option[0]
    if flag == "--pack":
        value = ":".join(map(str, value.values()))
    return f"{flag} {_word(value)}"


def _word(value: object) -> str:
    """A value as one word of a command line: as JSON, where it would be read as something else otherwise."""
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else None
    clear = all(isinstance(one, str) and one.isprintable() for one in parts or [value])
    if parts and clear and not {",", "="} & set("".join(parts)):
        pairs = map("=".join, value.items()) if isinstance(value, dict) else parts
        return shlex.quote(",".join(pairs))
    return shlex.quote(value if isinstance(value, str) and clear else json.dumps(value, ensure_ascii=False))


def typed_error(error: GdsloadError, options: Mapping[str, str]) -> GdsloadError:
    """A copy of an error whose texts have options as they are typed: see `as_typed`."""
    typed = copy.copy(error)
    typed.message = as_typed(error.message, options)
    if error.option and error.option in options:
        typed.message = options[error.option] + typed.message.removeprefix(error.option)
    typed.cause, typed.remedy = (text and as_typed(text, options) for text in (error.cause, error.remedy))
    return typed


def show_fault(error: GdsloadError, options: Mapping[str, str], *, more: str = ".problems") -> None:
    """Show an error on the error stream; `more` is where problems are listed that are too many to be shown."""
    error = typed_error(error, options)
    _line("error", "red", f"{error.where}: {error.message}" if error.where else error.message)
    if error.cause:
        _line("cause", "yellow", error.cause)
    problems = error.problems if isinstance(error, FormatError) else ()
    for problem in problems[:_SHOWN]:
        _show(str(problem), first="  - ", rest="    ")
    if len(problems) > _SHOWN:
        _show(f"and {len(problems) - _SHOWN} more in {more}", first="  - ", rest="    ")
    if error.remedy:
        _line("hint", "cyan", error.remedy)
    for note in getattr(error, "__notes__", ()):
        _line("note", "cyan", note)


def show_usage(message: str, hint: str) -> None:
    """Show what is wrong with a command line."""
    _line("error", "red", message)
    _line("hint", "cyan", hint)


def show_note(word: str, text: str) -> None:
    """Show a sentence on the error stream that is no error: ``stopped: …``."""
    _line(word, "yellow", text)


def _line(word: str, colour: str, text: str) -> None:
    text = re.sub(r"(?<!\.)\.$", "", text) if word in ("error", "cause") else text
    _show(text, first=f"{word}: ", rest=" " * (len(word) + 2), head=paint(f"{word}:", colour, sys.stderr))


def _show(text: str, *, first: str, rest: str, head: str = "") -> None:
    lines = wrapped(plain(text), terminal_width(sys.stderr), first=first, rest=rest)
    for number, line in enumerate(lines):
        say(f"{head}{line[len(first) - 1 :]}" if head and not number else line, sys.stderr)
