"""The command line: `gdsload COMMAND ...`.

Exit codes: 0, done; 1, a fault that gdsload names; 2, wrong usage; 130, interrupted; 143, the same by SIGTERM.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from gdsload.errors import GdsloadError
from gdsload.system.version import __version__
from gdsload.tools.cli import bench, convert, demo, doctor, inspect, tune, verify
from gdsload.tools.cli import reshard as rearrange
from gdsload.tools.cli.terminal import Terminated, say

__all__ = ["main"]

_COMMANDS = (convert, rearrange, inspect, verify, doctor, bench, tune, demo)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        arguments: the command line behind the program's name; None for that of the process.
    """
    parser = argparse.ArgumentParser(prog="gdsload", description="Batches of tensors from NVMe, by the shortest path.")
    parser.add_argument("--version", action="version", version=f"gdsload {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in _COMMANDS:
        module.add_to(commands)
    chosen = parser.parse_args(arguments)
    try:
        code: int = chosen.run(chosen)
    except GdsloadError as error:
        print(f"gdsload: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        sys.stderr.close()  # `gdsload inspect … | head` is no fault
        return 0
    except KeyboardInterrupt as error:
        for note in getattr(error, "__notes__", ()):  # how far it is, and how it goes on
            say(f"Stopping: {note}", sys.stderr)
        return 143 if isinstance(error, Terminated) else 130
    return code
