"""Calls libraries in a process that a damaged file may kill, and never in the user's.

A worker of a conversion may die, so it reads by itself. Any other process has one beside it that reads.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from typing import Any

from gdsload.conversion.spread import CONVERSION
from gdsload.errors import FormatError
from gdsload.system.crew import Crew, Outcome, Work

__all__ = ["read_apart"]

_WORK = Work("gdsload-read", "what is read", "convert", "a source in a module")
_IDLE_S = 1.0
"""Seconds after the last read at which the process is ended: the next file of a conversion comes sooner."""


def read_apart(function: Callable[..., Any], file: str, *arguments: Any) -> Any:
    """Call a function on a file in a process that may die; the first call starts it, unless this is one.

    Args:
        function: a function of a module; it gets the file and the arguments.
        file: the file.
        arguments: what else the function gets.

    Raises:
        FormatError: if the process dies in it. Any error of the function is raised as well.
    """
    if multiprocessing.current_process().name == CONVERSION.name:
        return function(file, *arguments)
    ended: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    crew = _apart.begin()
    crew.submit(function, (file, *arguments), ended.put)
    try:
        return ended.get()()
    except BrokenExecutor as error:
        raise FormatError(
            f"the process that reads it has died: {error}",
            file=file,
            remedy="The file is damaged, or the machine is short of memory: get the file again, or free some memory.",
        ) from None
    except Exception:
        raise
    except BaseException:  # Ctrl-C: the result is not wanted any more
        _apart.drop(crew)
        crew.stop()
        raise
    finally:
        _apart.over()


class _Apart:
    """The one process beside this one; a fork needs another one."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._crew: Crew | None = None
        self._reads, self._idle = 0, threading.Timer(_IDLE_S, self._end)
        self._lock = threading.Lock()

    def begin(self) -> Crew:
        """Note a read, which the process that is returned makes."""
        with self._lock:
            self._idle.cancel()
            self._reads += 1
            self._crew = self._crew or Crew(_WORK, 1, processes=True)
            return self._crew

    def over(self) -> None:
        """Note the end of a read."""
        with self._lock:
            self._reads -= 1
            if not self._reads:
                self._idle = threading.Timer(_IDLE_S, self._end)
                self._idle.daemon = True
                with suppress(RuntimeError):  # the system has no further thread: it ends with the program
                    self._idle.start()

    def drop(self, crew: Crew) -> None:
        """Have the next read start another process."""
        with self._lock:
            self._crew = None if self._crew is crew else self._crew

    def _end(self) -> None:
        with self._lock:
            crew, self._crew = (None, self._crew) if self._reads else (self._crew, None)
        if crew is not None:
            crew.end()


_apart = _Apart()
