"""Conversions on a cluster that is there already: Dask's or Ray's, over a file system that all its machines share.

The cluster decides which machine does a task; Dask and Ray give the tasks of a lost machine to another one, a few
times. A part that was begun twice is there once: it appears by one rename.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import contextmanager
from functools import partial
from typing import Any

from gdsload.conversion.sources.extras import need
from gdsload.errors import OptionError

__all__ = ["ClusterExecutor", "dask_executor", "ray_executor"]

_TRIES = 3
_CONNECT_S = 20


class ClusterExecutor(Executor):
    """A cluster as an executor. Submitted tasks are not cancelled but waited for: they write to the same folder.

    Args:
        start: runs a function on the cluster.
        meaning: turns an error of the cluster into the one that the function raised, or into `BrokenExecutor`.
        workers: how many tasks the cluster does at once.
    """

    def __init__(
        self,
        start: Callable[..., Future[Any]],
        meaning: Callable[[BaseException], BaseException],
        workers: int,
    ) -> None:
        self._start, self._meaning = start, meaning
        self.workers = workers

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        """See `concurrent.futures.Executor.submit`."""
        given: Future[Any] = Future()
        given.set_running_or_notify_cancel()
        self._start(function, *arguments, **keywords).add_done_callback(partial(self._hand_on, given))
        return given

    def _hand_on(self, given: Future[Any], found: Future[Any]) -> None:
        try:
            result = found.result()
        except BaseException as error:
            given.set_exception(self._meaning(error))
        else:
            given.set_result(result)


@contextmanager
def dask_executor(address: str) -> Iterator[ClusterExecutor]:
    """The executor of a Dask cluster, for `convert`'s `executor`.

    Args:
        address: its scheduler's: ``"tcp://host:8786"``.

    Raises:
        OptionError: if Dask is not installed, or there is no scheduler.
    """
    distributed = need("distributed", purpose="a Dask cluster", package="distributed")
    killed = need("distributed.scheduler", purpose="a Dask cluster", package="distributed").KilledWorker
    try:
        client = distributed.Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise _unreachable("Dask", address, error) from error

    def meaning(error: BaseException) -> BaseException:
        return BrokenExecutor(str(error)) if isinstance(error, killed | CancelledError) else error

    with client:
        threads = sum(client.nthreads().values())
        yield ClusterExecutor(client.get_executor(pure=False).submit, meaning, max(threads, 1))


@contextmanager
def ray_executor(address: str) -> Iterator[ClusterExecutor]:
    """The executor of a Ray cluster, for `convert`'s `executor`.

    Args:
        address: its head's: ``"host:6379"``, or ``"auto"``. A cluster to which this process is connected already is
            used as it is.

    Raises:
        OptionError: if Ray is not installed, or there is no cluster.
    """
    ray = need("ray", purpose="a Ray cluster", package="ray")
    ours = not ray.is_initialized()
    if ours:
        try:
            _knock(address)
            ray.init(address=address, log_to_driver=False, logging_level="error")
        except (OSError, ValueError, RuntimeError) as error:
            raise _unreachable("Ray", address, error) from error
    call = ray.remote(max_retries=_TRIES)(_call)

    def start(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        found: Future[Any] = call.remote(function, *arguments).future()
        return found

    def meaning(error: BaseException) -> BaseException:
        if isinstance(error, ray.exceptions.RayTaskError):
            cause: BaseException = error.cause
            return cause
        return BrokenExecutor(str(error)) if isinstance(error, ray.exceptions.RayError) else error

    try:
        yield ClusterExecutor(start, meaning, max(int(ray.cluster_resources().get("CPU", 1)), 1))
    finally:
        if ours:
            ray.shutdown()


def _knock(address: str) -> None:
    """Ray waits minutes for a head that is not there."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host, int(port)), _CONNECT_S).close()


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _unreachable(kind: str, address: str, error: BaseException) -> OptionError:
    return OptionError(f"there is no {kind} cluster at {address!r}: {str(error)[:200]}")
