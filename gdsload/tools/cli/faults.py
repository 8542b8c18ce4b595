"""Errors as commands show them: what, why and what to do on their own lines, in the words of the command line.

The library speaks Python: ``fields=['a', 'b']``. `as_typed` alone knows how that is typed: ``--fields a,b``.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping

from gdsload.errors import FormatError, GdsloadError
from gdsload.tools.cli.terminal import paint, plain, say, terminal_width, wrapped

__all__ = ["as_typed", "show_fault", "show_note", "show_usage"]

_SHOWN = 20
_VALUE = r"""(?:"[^"]*"|'[^']*'|\[[^\]]*\]|\{[^}]*\}|[\w%]+(?:\.[\w%]+)*)?"""
_LISTED = re.compile(r"(Its options are )([\w, ]+)\.")
_IN_PYTHON = "Convert it first, or give the schema with the element type that you want"
_CAUSE = re.compile(r"\. The first[,:] |: (?=[A-Z]\w*(?:Error|Exception|Bomb|Interrupt): )")
_OWN = re.compile(r"\b(?:Schema|Format|Checksum|Option|Read|ShortRead|FileChanged|Conversion)Error: ")


def as_typed(text: str, options: Mapping[str, str]) -> str:
    """A sentence with options as they are typed, where it has them as in Python.

    Args:
        text: the sentence.
        options: how each is typed, by its name in Python: ``{"on_error": "--on-error"}``.
    """
    text = text.replace(_IN_PYTHON, "Convert it first, or cast it to a type that holds it (--cast)")
    text = text.replace('"dtype": "int64" in pack', "--pack FIELD:LENGTH:int64")
    text = _LISTED.sub(lambda found: found[1] + ", ".join(map(_typed, found[2].split(", "))) + ".", text)
    if not options:
        return text
    names = "|".join(sorted(map(re.escape, options), key=len, reverse=True))
    text = re.sub(rf"(?<![\w./-])({names})=({_VALUE})(?!\w)", lambda found: _option(options[found[1]], found[2]), text)
    text = re.sub(rf"(?<=(?:larger|maller) )({names})\b", lambda found: options[found[1]], text)
    text = re.sub(rf"^({names})(?= (?:is|are) )", lambda found: options[found[1]], text)
    long = "|".join(sorted((re.escape(name) for name in options if "_" in name), key=len, reverse=True))
    return re.sub(rf"(?<![\w./-])({long})(?![\w=/])", lambda found: options[found[1]], text) if long else text


def _typed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _option(flag: str, value: str) -> str:
    if value.lower() in ("true", ""):
        return flag
    if value.lower() == "false":
        return f"--no-{flag[2:]}"
    if "..." in value:
        return f"{flag} NAME=VALUE" if value.startswith("{") else f"{flag} {'NAME' if value[0] == '[' else 'VALUE'}"
    try:
        found = ast.literal_eval(value)
    except (ValueError, SyntaxError):  # a word
        found = value
    return f"{flag} {shlex.quote(_word(found))}"


def _word(value: object) -> str:
    """A value as one word of a command line."""
    if isinstance(value, dict):
        value = [f"{name}={one}" for name, one in value.items()]
    if isinstance(value, list):
        words = [str(one) for one in value]
        return json.dumps(words, ensure_ascii=False) if any("," in one for one in words) else ",".join(words)
    return str(value)


def show_fault(error: GdsloadError, options: Mapping[str, str], *, more: str = ".problems") -> None:
    """Show an error on the error stream.

    Args:
        error: the error.
        options: see `as_typed`.
        more: where problems are listed that are too many to be shown.
    """
    what, why = _divided(as_typed(error.message, options))
    _line("error", "red", f"{error.where}: {what}" if error.where else what)
    if why:
        _line("cause", "yellow", why)
    for line in _problems(error, more):
        _show(line, first="  - ", rest="    ")
    if error.remedy:
        _line("hint", "cyan", as_typed(error.remedy, options))
    for note in getattr(error, "__notes__", ()):
        _line("note", "cyan", note)


def _divided(message: str) -> tuple[str, str]:
    """An error's message without its cause, and the cause, if it is another error's text, else ""."""
    found = _CAUSE.search(message)
    if found is None:
        return message, ""
    return message[: found.start()], _OWN.sub("", message[found.end() :])


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
