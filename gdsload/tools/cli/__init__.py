"""The command line: `gdsload COMMAND ...`.

Exit codes: 0, done; 1, a fault that gdsload names; 2, wrong usage; 130, interrupted; 143, the same by SIGTERM.

Commands import what they need when they run, so that help and completion work without torch.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

from gdsload.errors import GdsloadError, OptionError
from gdsload.shards.status import naming, read_error
from gdsload.system.version import __version__
from gdsload.tools.cli import bench, completion, convert, demo, doctor, inspect, verify
from gdsload.tools.cli import reshard as rearrange
from gdsload.tools.cli.faults import as_typed, show_fault, show_note, show_usage, typed_error
from gdsload.tools.cli.terminal import safe_streams
from gdsload.tools.cli.usage import Parser, flags, meant, python_names

__all__ = ["Terminated", "ended_by_sigterm", "main", "make_parser"]

_COMMANDS = (convert, rearrange, inspect, verify, doctor, bench, demo, completion)
_GROUPS = {
    "make datasets": ("convert", "merge", "split", "reshard"),
    "look at them": ("inspect", "verify"),
    "know the machine": ("doctor", "bench"),
    "get started": ("demo", "completion"),
}
_EXAMPLES = """
gdsload convert pictures/ shards/ --size 224    make shards of what you have
gdsload inspect shards/                         see what is in them
gdsload doctor shards/                          see how they reach the GPU here
"""


def make_parser() -> tuple[Parser, Mapping[str, Parser]]:
    """The parser of the whole command line, and that of each command."""
    parser = Parser(
        prog="gdsload", usage="gdsload COMMAND ...", example=_EXAMPLES,
        description="Batches of tensors from NVMe, by the shortest path.",
    )  # fmt: skip
    parser.add_argument("-V", "--version", action="version", version=f"gdsload {__version__}")
    commands = parser.add_subparsers(prog="gdsload", metavar="COMMAND", dest="command", help=argparse.SUPPRESS)
    for module in _COMMANDS:
        module.add_to(commands)
    helps = {action.dest: action.help for action in commands._choices_actions}  # noqa: SLF001 - there is no public way
    lines = [str(parser.description)]
    for title, names in _GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:<12}{helps[name]}" for name in names)]
    parser.description = "\n".join([*lines, "", "`gdsload help COMMAND` prints the options and examples of a command."])
    return parser, commands.choices


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Have SIGTERM raise `Terminated` in here, unless it is ignored; signals are the main thread's."""

    def end(_number: int, _frame: object) -> NoReturn:
        raise Terminated

    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; `arguments` None: those of the process."""
    safe_streams()
    words = _as_options(list(sys.argv[1:] if arguments is None else arguments))
    whole, commands = make_parser()
    if words and words[0] not in commands and not words[0].startswith("-"):
        show_usage(f"there is no command {words[0]!r}", f"{meant(words[0], commands)}`gdsload --help` lists them all.")
        sys.exit(2)
    parser = commands.get(words[0], whole) if words else whole
    try:
        return _code(words, whole, parser)
    except KeyboardInterrupt as error:
        by = "SIGTERM" if isinstance(error, Terminated) else "Ctrl-C"
        notes = getattr(error, "__notes__", ())  # how far it is, and how it goes on
        for text in [_typed(parser, note) for note in notes] or [f"by {by}"]:
            show_note("stopped", text)
        return 143 if isinstance(error, Terminated) else 130


def _code(words: list[str], whole: Parser, parser: Parser) -> int:
    """The exit code of a command, whose fault is shown."""
    late = parser.get_default("late")
    try:
        if not words:
            whole.print_help()
            return 0
        with ended_by_sigterm():
            others = {word.partition("=")[0] for word in words if word.startswith("--")}.difference(flags(parser))
            if late is not None and others:
                late(parser, others)
            chosen, extras = whole.parse_known_args(
                words, argparse.Namespace(words=words, typed=partial(_typed, parser))
            )
            if parser is whole or extras:
                parser.refuse(extras)
            with naming(read_error, "the command cannot go on", ""):
                return int(chosen.run(chosen))
    except GdsloadError as error:
        show_fault(error, _names(parser))
        return 2 if isinstance(error, OptionError) else 1


def _as_options(words: list[str]) -> list[str]:
    """Replace the words `help` and `version`, which users often type, by the options."""
    if words[:1] == ["help"]:
        return [*(word for word in words[1:] if word not in ("help", "version")), "--help"]
    return ["--version", *words[1:]] if words[:1] == ["version"] else words


def _typed(parser: Parser, said: str | GdsloadError) -> str:
    return as_typed(said, _names(parser)) if isinstance(said, str) else str(typed_error(said, _names(parser)))


def _names(parser: Parser) -> dict[str, str]:
    """The flag of each option, by its name in Python."""
    late = parser.get_default("late")
    if late is not None:
        late(parser)
    return python_names(parser)
