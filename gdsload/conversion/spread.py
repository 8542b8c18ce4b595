"""The tasks of a conversion, shared out to the workers."""

from __future__ import annotations

import os
import queue
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from gdsload.conversion.clusters import Cluster, meaning
from gdsload.conversion.part import PartTask, convert_part
from gdsload.conversion.staging import PartReport
from gdsload.errors import ReadError
from gdsload.order.checks import check_whole
from gdsload.system.crew import Crew, Work

__all__ = ["CONVERSION", "Spread"]

CONVERSION = Work("gdsload-convert", "the source", "convert", "`workers=1`")

_LEAVE_S = 1.0
"""Seconds that an interrupted conversion waits for a user's executor, whose work cannot be ended."""

Outcome = Callable[[], PartReport | None]
Submit = Callable[[PartTask, Callable[[Outcome], None]], None]
"""Starts a task; a function is called with another one that gives its report or raises its error."""


class Spread:
    """The workers that do the tasks of a conversion.

    Args:
        workers: how many at once; None: one for each processor.
        executor: what has them done; None: this process, threads or processes of our own.

    Raises:
        OptionError: if there is no such number of workers.
    """

    def __init__(self, workers: int | None, executor: Executor | Cluster | None) -> None:
        self._workers = len(os.sched_getaffinity(0)) if workers is None else check_whole(workers, "workers", 1)
        self._executor = executor

    def do(
        self,
        tasks: Sequence[PartTask],
        begin: Callable[[int], None],
        add: Callable[[PartReport], None],
        note: Callable[[int, int], None],
    ) -> None:
        """Have all tasks done, some of them handed out at once.

        The first error ends it, when what was begun has ended. Ctrl-C ends it at once: what was begun is lost.

        Args:
            tasks: what is to be done.
            begin: called with a task's number before it is begun.
            add: called with its report.
            note: called now and then with the number of a part that is under way and how many samples it has by then,
                but for parts that an executor does.

        Raises:
            ReadError: if a worker was lost.
        """
        if self._executor is None and (self._workers == 1 or len(tasks) < 2):
            for one in tasks:
                begin(one.number)
                add(convert_part(replace(one, noted=note)))
            return
        left, running = iter(tasks), 0
        ended: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

        def noted(number: int, samples: int) -> None:
            """Hand it to the thread of the caller."""
            ended.put(lambda: note(number, samples))

        try:
            with self._hands(tasks, noted) as submit:
                while True:
                    while running < 4 * self._workers and (task := next(left, None)) is not None:
                        begin(task.number)
                        submit(task, ended.put)
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
                "damaged, `workers=1` names it. It goes on from there.",
            ) from error

    def _hands(self, tasks: Sequence[PartTask], noted: Callable[[int, int], None]) -> AbstractContextManager[Submit]:
        if self._executor is not None:
            return _theirs(self._executor)
        threads = tasks[0].source.threads and tasks[0].options.map is None
        crew = Crew(CONVERSION, min(self._workers, len(tasks)), processes=not threads)
        return _ours(crew, noted, threads=threads)


@contextmanager
def _ours(crew: Crew, noted: Callable[[int, int], None], *, threads: bool) -> Iterator[Submit]:
    def submit(task: PartTask, ended: Callable[[Outcome], None]) -> None:
        if threads:
            crew.submit(_convert_beside, (replace(task, stopped=crew.stopped),), ended, noted)
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


def _convert_beside(task: PartTask, noted: Callable[[int, int], None]) -> PartReport:
    """Do a task in a thread among others."""
    return convert_part(replace(task, noted=noted))


def _convert_alone(task: PartTask, noted: Callable[[int, int], None]) -> PartReport:
    """Do a task in a process that has one processor to itself."""
    os.environ["OMP_NUM_THREADS"] = "1"  # for a torch that is imported later
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
    return convert_part(replace(task, noted=noted))


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
        error = done.exception()
    except CancelledError as cancelled:
        error = cancelled
    if error is None:
        return done.result()
    raise meaning(error)
