"""The program of a worker process: one call after the other, each handed to it by the thread that started it."""

from __future__ import annotations

import multiprocessing
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import spawn
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from gdsload.errors import GdsloadError, OptionError, ReadError
from gdsload.system.crew import Work

__all__: list[str] = []

_SCRIPT = ("init_main_from_name", "init_main_from_path")


def main() -> None:
    """Do what comes through the connection, until it is closed."""
    with suppress(EOFError, ConnectionError):  # the process that started it has ended
        _serve(Connection(int(sys.argv[1])))


def _serve(connection: Connection) -> None:
    work, prepared = connection.recv()
    script = {name: prepared.pop(name) for name in _SCRIPT if name in prepared}
    spawn.prepare(prepared)

    def noted(*found: Any) -> None:
        connection.send((None, found))

    while True:
        payload = connection.recv_bytes()
        try:
            if script and b"__main__" in payload:
                _import(script, work)
                script = {}
            function, arguments, notes = ForkingPickler.loads(payload)
            answer = True, function(*arguments, *([noted] if notes else []))
        except Exception as error:
            if not isinstance(error, GdsloadError):
                error.add_note(traceback.format_exc())
            answer = False, _to_send(error)
        try:
            connection.send(answer)
        except ConnectionError:
            raise
        except Exception as error:  # not everything can be sent
            connection.send((False, ReadError(f"a result cannot be sent back ({error}): {answer[1]!r:.500}")))


def _to_send(error: Exception) -> Exception:
    """The error, or one with its name, message and notes if the process that waits for it could not read it."""
    try:
        same = type(ForkingPickler.loads(ForkingPickler.dumps(error))) is type(error)
    except Exception:
        same = False
    if same:
        return error
    found = RuntimeError(f"{type(error).__name__}: {error}")
    for note in (*getattr(error, "__notes__", ()), f"{type(error).__name__} cannot be pickled"):
        found.add_note(note)
    return found


def _import(script: Mapping[str, Any], work: Work) -> None:
    """Import the user's script, because something in it is needed here.

    Raises:
        OptionError: if that fails, as it does where the script would begin once more.
    """
    process: Any = multiprocessing.current_process()
    process._inheriting = True  # noqa: SLF001 - as in spawned processes: the script is refused another crew
    try:
        spawn.prepare(script)
    except OptionError:
        raise
    except BaseException as error:
        raise OptionError(
            f"a worker process needs {next(iter(script.values()))!r}, where {work.what} is defined, but cannot import "
            f"it: {type(error).__name__}: {str(error)[:500]}",
            remedy=f'Put what the script does under `if __name__ == "__main__":`, or pass {work.alone}.',
        ) from None
    finally:
        del process._inheriting  # noqa: SLF001 - see above


if __name__ == "__main__":
    main()
