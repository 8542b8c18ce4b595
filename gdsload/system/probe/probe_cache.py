"""Probes cached on disk, so that a loader can start at once.

One small JSON file for each (library, file system, GPU), in ``$XDG_CACHE_HOME/gdsload``. It holds the whole key, and
only an equal key is a hit; a damaged entry, another user's or one too old is a miss. Nothing here raises.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gdsload.system.probe.result import CufileProbe

__all__ = ["cache_folder", "load", "locked", "store"]

_SCHEMA = 3
_LIMIT_BYTES = 2**20
_LIFE_S = {"ok": 7 * 86400.0, "failed": 3600.0, "missing": 3600.0}
_SHORT_LIFE_S = 600.0
"""A timeout may be due to a busy machine: it is believed only for about as long as it takes to notice a job that
restarts again and again."""
_LOCK_POLL_S = 0.05
_SLOT = ("library", "mount", "gpus", "device")


def cache_folder(environ: Mapping[str, str]) -> str | None:
    """The folder of cached probes; None if there is none."""
    base = environ.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):  # the XDG specification: a relative path is to be ignored
        home = environ.get("HOME", "")
        if not home.startswith("/"):
            return None
        base = f"{home}/.cache"
    return f"{base}/gdsload"


def _file(folder: str, key: Mapping[str, Any]) -> str:
    slot = json.dumps([key.get(part) for part in _SLOT], sort_keys=True)
    return f"{folder}/cufile-{hashlib.sha256(slot.encode()).hexdigest()[:24]}.json"


def load(folder: str | None, key: Mapping[str, Any], limits: Sequence[float] = ()) -> CufileProbe | None:
    """The probe cached under a key, or None; also None if it timed out under shorter limits than these."""
    if folder is None:
        return None
    try:
        fd = os.open(_file(folder, key), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (OSError, ValueError):
        return None
    try:
        # Another user's file is not trusted to say how this user's bytes travel.
        if os.fstat(fd).st_uid != os.geteuid():
            return None
        tree = json.loads(os.read(fd, _LIMIT_BYTES))
        if tree["schema"] != _SCHEMA or tree["key"] != json.loads(json.dumps(key)):
            return None
        probe = CufileProbe.from_json(tree["probe"])
        age = time.time() - float(tree["time"])
        had = [float(limit) for limit in tree["limits"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None
    finally:
        os.close(fd)
    if probe is None or not 0 <= age <= _LIFE_S.get(probe.status, _SHORT_LIFE_S):
        return None
    if probe.status == "timeout" and any(had < asked for had, asked in zip(had, limits, strict=False)):
        return None
    return probe


def store(folder: str | None, key: Mapping[str, Any], probe: CufileProbe, limits: Sequence[float] = ()) -> None:
    """Cache a probe with the time limits it had; the file appears whole or not at all."""
    if folder is None:
        return
    tree = {"schema": _SCHEMA, "time": time.time(), "key": key, "limits": [*limits], "probe": probe.to_json()}
    with contextlib.suppress(OSError, ValueError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        fd, path = tempfile.mkstemp(prefix=".cufile-", dir=folder)
        try:
            with open(fd, "w", encoding="utf-8") as file:
                json.dump(tree, file)
            os.replace(path, _file(folder, key))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise


@contextlib.contextmanager
def locked(folder: str | None, key: Mapping[str, Any], timeout_s: float) -> Iterator[None]:
    """Hold the lock of a key, so that not all processes that need its answer probe at once.

    After `timeout_s` seconds, or where no lock is available, it goes on without: the lock only saves work.
    """
    fd = -1
    with contextlib.suppress(OSError, ValueError):
        if folder is not None:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            fd = os.open(f"{_file(folder, key)}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    deadline = time.monotonic() + timeout_s
    try:
        while fd >= 0:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    break
                time.sleep(_LOCK_POLL_S)
            except OSError:
                break
        yield
    finally:
        if fd >= 0:
            os.close(fd)
