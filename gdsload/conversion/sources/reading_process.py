"""Calls libraries in a process that a damaged file may kill, and never in the user's.

A worker of a conversion may die, so it reads by itself. Any other process has one beside it that reads, to its end.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from typing import Any

from gdsload.conversion.spread import CONVERSION
from gdsload.errors import FormatError
from gdsload.system.crew import Crew, Outcome, Work

_WORK = Work("gdsload-read", "what is read", "convert", "a source in a module")
_crews: dict[int, Crew] = {}
"""The crew of each process, by its id: a fork needs another one."""


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
    crew = _crews.get(os.getpid()) or _crews.setdefault(os.getpid(), Crew(_WORK, 1, processes=True))
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
    except BaseException:  # Ctrl-C: nobody waits for what is read now
        _crews.pop(os.getpid(), None)
        crew.end()
        raise
