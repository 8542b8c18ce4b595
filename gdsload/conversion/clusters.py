"""Conversions on a cluster that is there already: Dask's or Ray's, over a file system that all its machines share.

The cluster decides which machine does a task; Dask and Ray give the tasks of a lost machine to another one, a few
times. A part that was begun twice is there once: it appears by one rename.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Future
from contextlib import contextmanager
from typing import Any, NamedTuple

from gdsload.conversion.sources.extras import need
from gdsload.errors import OptionError

_TRIES = 3
_CONNECT_S = 20


class Cluster(NamedTuple):
    """A cluster, as `convert` takes it for its `executor`.

    Attributes:
        submit: see `concurrent.futures.Executor.submit`.
        workers: how many tasks it does at once.
    """

    submit: Callable[..., Future[Any]]
    workers: int


@contextmanager
def dask_executor(address: str) -> Iterator[Cluster]:
    """The executor of a Dask cluster, for `convert`'s `executor`.

    Args:
        address: its scheduler's: ``"tcp://host:8786"``.

    Raises:
        OptionError: if Dask is not installed, or there is no scheduler.
    """
    distributed = need("distributed", purpose="a Dask cluster", package="distributed")
    try:
        client = distributed.Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise _unreachable("Dask", address, error) from error

    with client:
        threads = sum(client.nthreads().values())
        yield Cluster(client.get_executor(pure=False).submit, max(threads, 1))


@contextmanager
def ray_executor(address: str) -> Iterator[Cluster]:
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

    def submit(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        found: Future[Any] = call.remote(function, *arguments).future()
        return found

    try:
        yield Cluster(submit, max(int(ray.cluster_resources().get("CPU", 1)), 1))
    finally:
        if ours:
            ray.shutdown()


def meaning(error: BaseException) -> BaseException:
    """The error that a task on a cluster has raised, or `BrokenExecutor` if the cluster could not do it."""
    ray, dask = sys.modules.get("ray.exceptions"), sys.modules.get("distributed.scheduler")
    if ray is not None and isinstance(error, ray.RayTaskError):
        cause: BaseException = error.cause
        return cause
    lost = isinstance(error, CancelledError)
    lost = lost or (ray is not None and isinstance(error, ray.RayError))
    lost = lost or (dask is not None and isinstance(error, dask.KilledWorker))
    return BrokenExecutor(str(error)) if lost else error


def _knock(address: str) -> None:
    """Ray waits minutes for a head that is not there."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host, int(port)), _CONNECT_S).close()


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _unreachable(kind: str, address: str, error: BaseException) -> OptionError:
    return OptionError(f"there is no {kind} cluster at {address!r}: {str(error)[:200]}")
