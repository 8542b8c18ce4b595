"""`gdsload completion SHELL`: the script with which a shell completes commands and options."""

from __future__ import annotations

import argparse

from gdsload.errors import OptionError
from gdsload.tools.cli.terminal import say
from gdsload.tools.cli.usage import Commands, Parser

_SHELLS = ("bash", "zsh", "fish")
_EXAMPLES = """
gdsload completion bash > ~/.local/share/bash-completion/completions/gdsload
gdsload completion zsh > ~/.zfunc/_gdsload       with ~/.zfunc in fpath
gdsload completion fish > ~/.config/fish/completions/gdsload.fish
"""


def add_to(commands: Commands[Parser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "completion", help="print what a shell completes commands and options by", example=_EXAMPLES,
        usage="gdsload completion SHELL",
        description="Print a script by which a shell completes commands and options; needs gdsload[cli].",
    )  # fmt: skip
    parser.add_argument("shell", metavar="SHELL", choices=_SHELLS, help=f"one of {', '.join(_SHELLS)}")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError:
        raise OptionError(
            "completion is written by shtab, which is not installed", remedy="pip install 'gdsload[cli]'"
        ) from None
    from gdsload.tools.cli import make_parser

    parser, commands = make_parser()
    for one in (parser, *commands.values()):
        for action in one._actions:  # noqa: SLF001 - the only list of them
            if action.dest == "command":
                action.help = "what to do"  # else it is passed over, with all commands
            if action.metavar in ("PATH", "SOURCE", "OUT", "FILE", "DIR", "FOLDER"):
                action.complete = shtab.DIR if action.metavar in ("DIR", "FOLDER") else shtab.FILE  # type: ignore[attr-defined]
    say(shtab.complete(parser, chosen.shell))
    return 0
