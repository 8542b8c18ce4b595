"""The other end of `benchmarks.worker`: a contender's process, with limits of time."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

__all__ = ["Jsonable", "Launch", "Process", "WorkerError"]

_ROOT = Path(__file__).resolve().parent.parent


class WorkerError(Exception):
    """A contender failed, died or took too long; says which."""


class Jsonable(Protocol):
    """A description of the rows that can be sent to a process."""

    def to_json(self) -> dict[str, Any]:
        """As it goes to the process."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The way to start a process.

    Attributes:
        python: the interpreter, whose environment has the library.
        scratch: where the library may leave what it likes. A short path: sockets there must fit into 108 bytes.
        module: what it runs.
        packages: a folder of packages that are imported before any others of their names.
    """

    python: str
    scratch: Path
    module: str = "benchmarks.worker"
    packages: Path | None = None

    def environment(self) -> dict[str, str]:
        """Environment variables: settings of the user's are nobody's."""
        places = (self.packages, _ROOT, os.environ.get("PYTHONPATH"))
        scratch = dict.fromkeys(("TMPDIR", "HF_HOME", "XDG_CONFIG_HOME"), str(self.scratch))
        return {**os.environ, **scratch, "PYTHONPATH": os.pathsep.join(str(place) for place in places if place)}


class Process:
    """A contender's process.

    Args:
        name: key in `benchmarks.contenders.CONTENDERS`.
        folder: its folder, which no other contender uses.
        source: the rows.
        workload: what the rows are.
        launch: how it is started.

    Attributes:
        lost: whether it has ended or taken too long, so that it cannot be asked again.
    """

    def __init__(self, name: str, folder: Path, source: Path, workload: Jsonable, launch: Launch) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name, self.folder, self.source, self.lost = name, folder, source, False
        self._log = source.parent / f"{name}.log"
        with open(self._log, "wb") as log:
            process = subprocess.Popen(
                [launch.python, "-m", launch.module],
                cwd=launch.packages or _ROOT,  # `-m` imports from there first
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # so that its own workers can be ended with it
                env=launch.environment(),
            )
        self._process, self._rest = process, b""
        self._in, self._out = _pipes(process)
        # At once, so that many processes import their libraries at the same time.
        self.send({"name": name, "folder": str(folder), "source": str(source), "workload": workload.to_json()})

    def start(self) -> dict[str, Any]:
        """Wait until it has imported the library.

        Returns:
            What the contender says of itself.

        Raises:
            WorkerError: if it is not installed.
        """
        return self.answer(timeout_s=120)

    def ask(self, order: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Have something done.

        Raises:
            WorkerError: if it failed. The process cannot be asked again if it died or took too long.
        """
        self.send(order)
        return self.answer(timeout_s)

    def stop(self) -> None:
        """End it, gently if it listens, and its children in any case."""
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._in.close()
            self._process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._out.close()

    def send(self, order: dict[str, Any]) -> None:
        """Have something done, and do not wait for it: the answer must be fetched."""
        with contextlib.suppress(BrokenPipeError):  # it has ended: the answer will say so, with the reason
            self._in.write(json.dumps(order).encode() + b"\n")
            self._in.flush()

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """The answer to the order that was sent last; see `ask`."""
        if self.lost:
            raise WorkerError("the process was lost before")
        try:
            answer: dict[str, Any] = json.loads(self._line(timeout_s))
        except EOFError:
            self.lost = True
            raise WorkerError(f"the process ended: {self._last_words()}") from None
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def _line(self, timeout_s: float) -> bytes:
        end = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._out], [], [], max(end - time.monotonic(), 0))
            if not ready:
                self.lost = True
                raise WorkerError(f"no answer within {timeout_s:.0f} s")
            data = os.read(self._out.fileno(), 65536)
            if not data:
                raise EOFError
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None:
        raise ValueError("the process was started without pipes")
    return process.stdin, process.stdout
