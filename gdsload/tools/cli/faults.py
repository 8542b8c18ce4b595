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
from collections.abc import Iterator, Mapping

from gdsload.errors import FormatError, GdsloadError
from gdsload.tools.cli.terminal import paint, plain, say, terminal_width, wrapped

__all__ = ["as_typed", "show_fault", "show_note", "show_usage", "typed_error"]

_SHOWN = 20
_OPTION = re.compile(r"`(\w+)(?:=([^`]*))?`")


def as_typed(text: str, options: Mapping[str, str]) -> str:
    """A sentence with its options as they are typed; options that the command does not have stay Python.

    Args:
        text: the sentence, with options in backticks as Python writes them.
        options: how each is typed, by its name in Python: ``{"on_error": "--on-error"}``.
    """
    return _OPTION.sub(lambda found: _typed(options[found[1]], found) if found[1] in options else found[0], text)


def _typed(flag: str, option: re.Match[str]) -> str:
    if option[2] in (None, "", "True"):
        return flag
    if option[2] == "False":
        return f"--no-{flag[2:]}"
    try:
        value = ast.literal_eval(option[2])
    except (ValueError, SyntaxError):  # cut short, or no literal
        return option[0]
    if flag == "--pack" and isinstance(value, dict):
        value = ":".join(map(str, value.values()))
    return f"{flag} {_word(value)}"


def _word(value: object) -> str:
    """A value as one word of a command line; "..." stands for any."""
    if isinstance(value, dict):
        if ... in (*value, *value.values()):
            return "NAME=VALUE"
        texts = [one if isinstance(one, str) else json.dumps(one, default=str) for one in value.values()]
        words = [f"{name}={text}" for name, text in zip(value, texts, strict=True)]
        return _listed(value, words, odd="=" in "".join(map(str, value)) or any("," in word for word in words))
    if isinstance(value, list):
        words = list(map(str, value))
        return "NAME" if ... in value else _listed(words, words, odd=any("," in word or "=" in word for word in words))
    if isinstance(value, str) and not value.isprintable():  # a tab would be shown as a blank
        return shlex.quote(json.dumps(value))
    return "VALUE" if value in (..., "...") else shlex.quote(str(value))


def _listed(value: object, words: list[str], *, odd: bool) -> str:
    """Words with commas between them, or the value as JSON if they would be read as something else."""
    return shlex.quote(json.dumps(value, ensure_ascii=False, default=str) if odd else ",".join(words))


def typed_error(error: GdsloadError, options: Mapping[str, str]) -> GdsloadError:
    """A copy of an error whose texts have options as they are typed: see `as_typed`."""
    typed = copy.copy(error)
    typed.message = as_typed(error.message, options)
    if error.option and error.option in options:
        typed.message = options[error.option] + typed.message.removeprefix(error.option)
    typed.cause, typed.remedy = (text and as_typed(text, options) for text in (error.cause, error.remedy))
    return typed


def show_fault(error: GdsloadError, options: Mapping[str, str], *, more: str = ".problems") -> None:
    """Show an error on the error stream.

    Args:
        error: the error.
        options: see `as_typed`.
        more: where problems are listed that are too many to be shown.
    """
    error = typed_error(error, options)
    _line("error", "red", f"{error.where}: {error.message}" if error.where else error.message)
    if error.cause:
        _line("cause", "yellow", error.cause)
    for line in _problems(error, more):
        _show(line, first="  - ", rest="    ")
    if error.remedy:
        _line("hint", "cyan", error.remedy)
    for note in getattr(error, "__notes__", ()):
        _line("note", "cyan", note)


def _problems(error: GdsloadError, more: str) -> Iterator[str]:
    problems = error.problems if isinstance(error, FormatError) else ()
    yield from map(str, problems[:_SHOWN])
    if len(problems) > _SHOWN:
        yield f"and {len(problems) - _SHOWN} more in {more}"


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
