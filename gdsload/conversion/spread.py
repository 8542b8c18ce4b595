"""The tasks of a conversion, shared out to the workers; and its first look, in a process that a file may kill.

A damaged file never ends the user's process where other processes read: unless a single worker is asked for, and for
libraries that are known to crash that one too.
"""

from __future__ import annotations

import os
import queue
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any

from gdsload.conversion.clusters import Cluster, meaning
from gdsload.conversion.part import PartTask, convert_part
from gdsload.conversion.staging import PartReport
from gdsload.errors import FormatError, ReadError
from gdsload.system.crew import Crew, Outcome, Work

CONVERSION = Work("gdsload-convert", "the source", "convert", "`workers=1`")

_LEAVE_S = 1.0
"""Seconds that an interrupted conversion waits for a user's executor, whose work cannot be ended."""

Submit = Callable[[PartTask, Callable[[Outcome], None]], None]
"""Starts a task; a function is called with another one that gives its report or raises its error."""


def do_all(
    tasks: Sequence[PartTask],
    workers: int,
    executor: Executor | Cluster | None,
    add: Callable[[PartReport], None],
    note: Callable[[int, int], None],
    *,
    apart: bool,
) -> None:
    """Have all tasks of a conversion done.

    The first error ends it, when what was begun has ended. Ctrl-C ends it at once: what was begun is lost.

    Args:
        tasks: what is to be done.
        workers: how many are done at once.
        executor: runs them; None: threads or processes of this conversion do.
        add: called with the report of each.
        note: called now and then with the number of a task that is under way and how many samples it has by then, but
            for tasks that an executor does.
        apart: whether other processes do them, also if there is one worker or one task.

    Raises:
        ReadError: if a worker was lost.
    """
    if not tasks or (executor is None and not apart and (workers == 1 or len(tasks) < 2)):
        for one in tasks:
            add(convert_part(one, note=note))
        return
    left, running = iter(tasks), 0
    ended: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

    def noted(number: int, samples: int) -> None:
        """Hand it to the thread of the caller."""
        ended.put(lambda: note(number, samples))

    try:
        with _ours(tasks, workers, noted) if executor is None else _theirs(executor) as submit:
            while True:
                while running < 4 * workers and (task := next(left, None)) is not None:
                    submit(task, partial(_hand_over, ended, task))
                    running += 1
                if not running:
                    return
                if (report := ended.get()()) is not None:
                    add(report)
                    running -= 1
    except BrokenExecutor as error:
        raise ReadError(
            f"a worker was lost: {error}",
            remedy="If it was killed, memory may have run out: run it again with fewer workers. If a file is "
            "damaged, it is the one that is named. It goes on from there.",
        ) from error


def _hand_over(ended: queue.SimpleQueue[Outcome], task: PartTask, outcome: Outcome) -> None:
    ended.put(partial(_outcome, task, outcome))


def _outcome(task: PartTask, outcome: Outcome) -> Any:
    """The result of a task, whose parts are named if the worker was lost."""
    try:
        return outcome()
    except BrokenExecutor as error:
        more = f" or {len(task.parts) - 1} after it" if len(task.parts) > 1 else ""
        raise BrokenExecutor(f"{error}, in {task.parts[0].name}{more}") from error


@contextmanager
def _ours(tasks: Sequence[PartTask], workers: int, noted: Callable[[int, int], None]) -> Iterator[Submit]:
    threads = tasks[0].source.threads and tasks[0].options.map is None
    crew = Crew(CONVERSION, min(workers, len(tasks)), processes=not threads)

    def submit(task: PartTask, ended: Callable[[Outcome], None]) -> None:
        if threads:
            crew.submit(convert_part, (task, crew.stopped), ended, noted)
        else:
            crew.submit(_convert_alone, (task,), ended, noted)

    try:
        try:
            yield submit
        except Exception:
            crew.cancel()
            crew.finish()
            raise
        crew.finish()
    except Exception:
        raise
    except BaseException:
        crew.end()
        raise


def _convert_alone(task: PartTask, noted: Callable[[int, int], None]) -> PartReport:
    """Do a task in a process that has one processor to itself."""
    os.environ["OMP_NUM_THREADS"] = "1"  # for a torch that is imported later
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
    return convert_part(task, note=noted)


@contextmanager
def _theirs(executor: Executor | Cluster) -> Iterator[Submit]:
    """The user's executor, which is left open."""
    begun: set[Future[Any]] = set()

    def submit(task: PartTask, ended: Callable[[Outcome], None]) -> None:
        future = executor.submit(convert_part, task)
        begun.add(future)
        future.add_done_callback(begun.discard)
        future.add_done_callback(lambda done: ended(partial(_result, done)))

    try:
        yield submit
    except BaseException as error:
        # Others cancel what they have begun, and do not end it: it would write on beside the next run.
        honest = isinstance(executor, ProcessPoolExecutor | ThreadPoolExecutor)
        left = [future for future in list(begun) if not (honest and future.cancel())]
        wait(left, None if isinstance(error, Exception) else _LEAVE_S)
        raise


def _result(done: Future[Any]) -> Any:
    try:
        return done.result()
    except BaseException as error:
        raise meaning(error) from error.__cause__


@contextmanager
def first_reader(file: str | None) -> Iterator[Callable[..., Any]]:
    """A function that calls others, which look at a file, in a new process of this conversion; None: in this process.

    Raises:
        FormatError: if the process dies in it. Any error of the function is raised as well.
    """
    if file is None:
        yield lambda function, *arguments: function(*arguments)
        return
    crew = Crew(CONVERSION, 1, processes=True)
    try:
        yield partial(_call, crew, file)
    finally:
        crew.end()


def _call(crew: Crew, file: str, function: Callable[..., Any], *arguments: Any) -> Any:
    ended: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    crew.submit(function, arguments, ended.put)
    try:
        return ended.get()()
    except BrokenExecutor as error:
        raise FormatError(
            f"the process that reads it has died: {error}",
            file=file,
            remedy="The file is damaged, or the machine is short of memory: get the file again, or free some memory.",
        ) from None
