"""Threads or processes that do pieces of work, and can be stopped at any moment.

- Ctrl-C strikes in the main thread alone: processes are started, fed and noted by threads of the crew, one for each, in
  which no handler runs. So none is started that nobody knows of.
- Processes do not see SIGINT and SIGTERM, which a terminal or a service manager sends to all of a group: they inherit
  the mask of the thread that starts them. An interrupted caller kills them.
- Each ends with the thread that started it (PR_SET_PDEATHSIG), from before its first import on, and that thread stays
  until it has. So even a parent that is killed leaves none.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import spawn
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import Any

from gdsload.errors import OptionError, ReadError
from gdsload.system.failed import Failed
from gdsload.system.pool import Future, Pool, end_at_exit
from gdsload.system.probe.process import module_command, module_environment

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_GRACE_S = 5.0
"""An idle process that is to end takes a fraction of a second."""
_STOP_S = 1.0
"""A killed process is gone at once, unless it is in the kernel."""

Call = Callable[..., Any]
Outcome = Callable[[], Any]
Noted = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Work:
    """The purpose of a crew, in the words of its errors.

    Attributes:
        name: of its threads and processes: ``"gdsload-convert"``.
        what: what of the user's processes must get: ``"the source"``.
        again: what a script would do once more that a process imports: ``"convert"``.
        alone: the option that does without processes: ``"workers=1"``.
    """

    name: str
    what: str
    again: str
    alone: str


class Crew:
    """Threads, or processes that import nothing of the user's script that is not needed."""

    def __init__(self, work: Work, count: int, *, processes: bool) -> None:
        self._for, self._by_processes = work, processes
        self._pool, self._here = Pool(count, work.name, self._enter, self._leave), threading.local()
        # Between the start of a process and the end of all; an RLock, as a signal's handler may close.
        self._lock = threading.RLock()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stopped = False
        end_at_exit(self)

    def stopped(self) -> bool:
        """Return whether threads are to leave the work that they do."""
        return self._stopped

    def inside(self) -> bool:
        """Return whether the calling thread is one of the crew."""
        return hasattr(self._here, "process")

    def submit(
        self, function: Call, arguments: tuple[Any, ...], ended: Callable[[Outcome], None], noted: Noted | None = None
    ) -> None:
        """Have a function called with some arguments in a thread or process.

        `ended` is called, in a thread of ours, with what returns its result or raises its error; also if it is
        cancelled. With `noted` the function gets one more argument, by which it may call that on its way, in a thread
        of ours.
        """
        found: list[Outcome] = [Failed(BrokenExecutor("it was not begun"))]
        work = partial(self._do, found, 0, function, arguments, noted)
        self._pool.run([work], Future(1, lambda: ended(found[0])))

    def results(self, function: Call, arguments: Sequence[tuple[Any, ...]]) -> list[Outcome]:
        """Have a function called with each of some arguments, and wait for all calls to end.

        Returns for each call what returns its result or raises its error.

        Raises:
            LoaderClosedError: if some of it is cancelled.
        """
        found: list[Outcome] = [tuple] * len(arguments)  # until they are there
        self._pool.run([partial(self._do, found, at, function, one, None) for at, one in enumerate(arguments)]).wait()
        return found

    def cancel(self) -> None:
        """Cancel what was submitted and not begun."""
        self._pool.cancel()

    def finish(self) -> None:
        """Have all that was submitted done, and end."""
        self._pool.finish()

    def end(self) -> None:
        """End it now: what is under way in processes is lost, and threads come to the end of a sample or a batch."""
        self._stopped = True
        self._pool.stop()
        with self._lock:
            for process in self._processes:
                process.kill()
        self._pool.close()

    def _enter(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._here.process = _Process(self._start, self._for) if self._by_processes else None

    def _leave(self) -> None:
        if self._here.process is not None:
            self._here.process.end()

    def _do(
        self, found: list[Outcome], at: int, function: Call, arguments: tuple[Any, ...], noted: Noted | None
    ) -> None:
        try:
            if self._here.process is not None:
                result = self._here.process.call(function, arguments, noted)
            else:
                result = function(*arguments, *([] if noted is None else [noted]))
            found[at] = lambda: result
        except BaseException as error:
            found[at] = Failed(error)
        del found  # the error's traceback refers to this frame

    def _start(self, command: list[str], fd: int) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise BrokenExecutor("it is being stopped")
            environ = module_environment(os.environ)
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[fd], env=environ)
            self._processes.append(process)
        return process


def _received(connection: Connection) -> Any:
    try:
        return connection.recv()
    except (EOFError, ConnectionError):
        raise
    except Exception as error:
        raise ReadError(f"the answer of a worker process cannot be read: {error}") from error


class _Process:
    """A process of one thread; `start` starts its command, which inherits a descriptor, once there is work to do."""

    def __init__(self, start: Callable[[list[str], int], subprocess.Popen[bytes]], work: Work) -> None:
        self._start, self._for = start, work
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def call(self, function: Call, arguments: tuple[Any, ...], noted: Noted | None) -> Any:
        """Have a function called there; what it returns or raises is handed on, and what it notes meanwhile.

        Raises:
            OptionError: if it cannot be sent there.
            BrokenExecutor: if the process ends in it.
        """
        payload = pickled((function, arguments, noted is not None), self._for)
        try:
            connection = self._connection or self._open()
            connection.send_bytes(payload)
            while (found := _received(connection))[0] is None:
                if noted is not None:
                    noted(*found[1])
            good, answer = found
        except (EOFError, ConnectionError) as error:
            raise BrokenExecutor(self._ended()) from error
        if good:
            return answer
        raise answer

    def _open(self) -> Connection:
        refuse_in_import(self._for)
        prepared = spawn.get_preparation_data(self._for.name)
        prepared["authkey"] = bytes(prepared["authkey"])  # tensors travel by descriptors, which this key guards
        ours, theirs = multiprocessing.Pipe()
        with theirs:
            fd = theirs.fileno()
            self._process = self._start(module_command("gdsload.system.crew_process", str(fd)), fd)
        self._connection = ours
        ours.send((self._for, prepared))
        return ours

    def _ended(self) -> str:
        """The way in which the process has ended, in words; the next call starts another one."""
        process, self._process = self._process, None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if process is None:
            return "it could not be started"
        code = _wait(process, _STOP_S)
        if code is None:
            return f"process {process.pid} closed its connection"
        how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        return f"process {process.pid} ended with {how}"

    def end(self) -> None:
        """Let the process go; one that does not is killed."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None and _wait(self._process, _GRACE_S) is None:
            self._process.kill()
            _wait(self._process, _STOP_S)


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return process.wait(timeout_s)
    return None


def pickled(value: object, work: Work) -> bytes:
    """Pickle a value for a worker process.

    Raises:
        OptionError: if that cannot be done, or if the process could not find what the value refers to.
    """
    written = io.BytesIO()
    pickler = _Pickler(written)
    try:
        pickler.dump(value)
    except Exception as error:
        what = f"{work.what} cannot be sent to a worker process: {type(error).__name__}: {error}"
        raise OptionError(what, remedy=f"Define it in a module, or pass {work.alone}.") from error
    if pickler.needs_script and not _script_is_a_file():
        raise OptionError(
            f"{work.what} is defined in a notebook, at a prompt or in a script from standard input, which a worker "
            "process cannot import",
            remedy=f"Put it into a .py file and import it from there, or pass {work.alone}.",
        )
    return written.getvalue()


class _Pickler(ForkingPickler):
    """Notes whether a function or class of the module `__main__` is in what it writes."""

    needs_script = False

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            self.needs_script = True
        return NotImplemented


def _script_is_a_file() -> bool:
    """Return whether another process can import the module `__main__`."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    return getattr(main, "__spec__", None) is not None or (path is not None and os.path.isfile(path))


def refuse_in_import(work: Work) -> None:
    """Refuse to begin while a process that somebody started imports the user's script.

    Raises:
        OptionError: if that is so here.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise OptionError(
            f"a worker process imports the script, because {work.what} is defined there, and the script would "
            f"{work.again} once more",
            remedy=f'Put the call under `if __name__ == "__main__":`, or {work.what} in another module.',
        )
