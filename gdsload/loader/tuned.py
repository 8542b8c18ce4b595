"""What `gdsload tune` has found best, and which loaders take it.

One small JSON file for each user. An entry counts for the machine, the file system and the version of gdsload that it
was measured with, and for nothing else. It holds settings that change nothing but speed, and an option that is given
always wins.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import torch

from gdsload.errors import DatasetNotFoundError, FormatError, GdsloadError, OptionError, WriteError
from gdsload.loader.options import MOST_READ_THREADS, LoaderOptions
from gdsload.shards.files import open_regular
from gdsload.shards.format.strict import loads, show
from gdsload.system.probe.mounts import find_mount, read_mounts
from gdsload.system.probe.tree import Tree
from gdsload.system.version import __version__

__all__ = ["Key", "check_file", "check_setting", "save", "tuned_file", "with_tuned"]

_FORMAT = "gdsload-tuned-1"
_RANGES = {"prefetch_bytes": (1, 2**40), "pinned_bytes": (2**20, 2**40), "read_threads": (1, MOST_READ_THREADS)}
"""The settings, and which values a file may give them."""
_MOST_BYTES = 2**20
_MOST_ENTRIES = 64

_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Key:
    """What settings were measured on.

    Attributes:
        gpu: the GPU that batches go to; None if they stay in CPU memory.
        cores: processors that this process may run on.
        file_system: where the dataset lies, for instance ``ext4``.
        storage: what is mounted there, for instance ``/dev/nvme0n1p1``.
        version: gdsload's.
    """

    gpu: str | None
    cores: int
    file_system: str
    storage: str
    version: str = __version__

    @classmethod
    def of(cls, path: str, device: torch.device) -> Key:
        """The key for a dataset and a device, on this machine."""
        gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        real = os.path.realpath(path)
        number = os.stat(real).st_dev
        mount = find_mount(read_mounts(Tree()), real, f"{os.major(number)}:{os.minor(number)}")
        where = (mount.kind, mount.source) if mount else ("unknown", "unknown")
        return cls(None if gpu == "cpu" else gpu, len(os.sched_getaffinity(0)), *where)


def tuned_file() -> str:
    """Where the settings of this user are kept; empty for one who has no home."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):  # as the specification of base directories wants it
        base = os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "gdsload", "tuned.json") if os.path.isabs(base) else ""


def check_setting(name: str, value: int) -> None:
    """Raise OptionError for a value that no file may give a setting."""
    low, high = _RANGES[name]
    if not low <= value <= high:
        raise OptionError(f"{name} is {value}, not {low} to {high}")


def check_file() -> None:
    """Raise what would keep `save` from writing the file, as far as that can be known before."""
    _read(_own_file())


def with_tuned(
    options: LoaderOptions, given: Mapping[str, object], path: str, device: torch.device
) -> tuple[LoaderOptions, dict[str, int]]:
    """A loader's options with the settings that were measured for it, and these settings.

    A file that cannot be used is left aside, with one warning for each process.

    Args:
        options: what the loader was made with.
        given: the keywords of these that were given: they stay as they are.
        path: the dataset, or the first of several.
        device: where batches go.
    """
    file = tuned_file()
    if not options.tuned or not os.path.lexists(file):
        return options, {}
    try:
        entries = _read(file)
    except GdsloadError as error:
        if file not in _warned:
            _warned.add(file)
            warnings.warn(f"tuned settings are not used: {error}", UserWarning, stacklevel=3)
        return options, {}
    try:
        wanted = asdict(Key.of(path, device)) if entries else None
    except OSError:  # the dataset is gone, as who opens its files will say
        return options, {}
    found: dict[str, int] = next((entry["settings"] for entry in entries if entry["key"] == wanted), {})
    settings = {name: value for name, value in found.items() if name not in given}
    return replace(options, **cast("dict[str, Any]", settings)), settings


def save(key: Key, settings: Mapping[str, int], measured: Mapping[str, Any]) -> str:
    """Keep settings for a key, in place of those that it had. Whoever reads sees the old file whole, or the new one.

    Args:
        key: what they were measured on.
        settings: the settings that are better than the defaults; none, if the defaults are best.
        measured: what was measured, for people who look into the file.

    Returns:
        The file.

    Raises:
        FormatError: if there is a file that gdsload did not write, which is never replaced.
        OptionError: if a setting has a value that no file may give it.
        WriteError: if it cannot be written.
    """
    for name, value in settings.items():
        check_setting(name, value)
    file = _own_file()
    try:
        os.makedirs(os.path.dirname(file), mode=0o700, exist_ok=True)
        with _locked(os.path.dirname(file)):
            entries = [entry for entry in _read(file) if entry["key"] != asdict(key)]
            entries.append({"key": asdict(key), "settings": dict(settings), "measured": dict(measured)})
            _replace(file, json.dumps({"format": _FORMAT, "entries": entries[-_MOST_ENTRIES:]}, indent=1) + "\n")
    except OSError as error:
        raise WriteError(f"tuned settings cannot be written: {error.strerror}", file=file) from error
    return file


def _own_file() -> str:
    file = tuned_file()
    if not file:
        raise WriteError("tuned settings cannot be written: there is no home folder", remedy="Set XDG_CONFIG_HOME.")
    return file


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Nobody else changes its file meanwhile. Where there are no locks, what is written last is what stays."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _replace(file: str, text: str) -> None:
    aside = f"{file}.{secrets.token_hex(8)}"
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(aside, file)
    except BaseException:
        with suppress(OSError):
            os.unlink(aside)
        raise


def _read(file: str) -> list[dict[str, Any]]:
    """The entries of a file; none if there is no file.

    Raises:
        FormatError: if it is not what `save` writes, or belongs to somebody else.
        ReadError: if it cannot be read.
    """
    try:
        fd = open_regular(file)
    except DatasetNotFoundError:
        return []
    with open(fd, "rb") as stream:
        if os.fstat(fd).st_uid not in (os.geteuid(), 0):
            raise _foreign(file, "it belongs to another user")
        raw = stream.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise _foreign(file, f"it has more than {_MOST_BYTES} bytes")
    try:
        tree = loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise _foreign(file, f"it is no JSON ({error})") from None
    if not isinstance(tree, dict) or tree.get("format") != _FORMAT or not isinstance(tree.get("entries"), list):
        raise _foreign(file, "it is of another format")
    for entry in tree["entries"]:
        if not isinstance(entry, dict) or not isinstance(entry.get("key"), dict):
            raise _foreign(file, f"{show(entry)} is no entry")
        _check_settings(file, entry.get("settings"))
    return cast("list[dict[str, Any]]", tree["entries"])


def _check_settings(file: str, settings: object) -> None:
    if not isinstance(settings, dict):
        raise _foreign(file, f"{show(settings)} are no settings")
    for name, value in settings.items():
        low, high = _RANGES.get(name, (1, 0))
        if type(value) is not int or not low <= value <= high:
            raise _foreign(file, f"{show(name)} cannot be {show(value)}")


def _foreign(file: str, why: str) -> FormatError:
    return FormatError(
        f"the file of tuned settings cannot be used: {why}", file=file,
        remedy="Remove it, and run `gdsload tune` again.",
    )  # fmt: skip
