"""The backends that users may ask for, with the options of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from gdsload.backends.bounce.bounce import PINNED_BYTES
from gdsload.backends.names import BACKEND_CHOICES, BackendChoice
from gdsload.backends.request import BackendRequest, BackendRow
from gdsload.errors import OptionError
from gdsload.order.checks import check_whole
from gdsload.system.units import parse_bytes

_MOST_THREADS = 512


@dataclass(frozen=True, slots=True)
class Auto:
    """The backend is chosen by evidence: ``backend="auto"`` with options.

    Attributes:
        engine: the library that calls cuFile: ``"cufile"`` or ``"kvikio"``.
        pinned: bytes of host memory that are pinned for `bounce`, 1 MiB at least: a number, or text such as
            ``"96MiB"``, the default.
        threads: how many threads read, 512 at most, shared out among the drives. None for as many as suits.

    Raises:
        OptionError: if one cannot be used.
    """

    name: ClassVar[BackendChoice] = "auto"
    engine: Literal["cufile", "kvikio"] = "cufile"
    pinned: int | str = PINNED_BYTES
    threads: int | None = None

    def __post_init__(self) -> None:
        requested(self)


@dataclass(frozen=True, slots=True)
class Bounce:
    """Bytes are read into pinned host memory and copied to the GPU: ``backend="bounce"`` with options.

    Attributes:
        pinned: as of `Auto`.
        threads: as of `Auto`.

    Raises:
        OptionError: if one cannot be used.
    """

    name: ClassVar[BackendChoice] = "bounce"
    pinned: int | str = PINNED_BYTES
    threads: int | None = None

    def __post_init__(self) -> None:
        requested(self)


@dataclass(frozen=True, slots=True)
class Gds:
    """cuFile reads into GPU memory, by DMA: ``backend="gds"`` with options.

    Attributes:
        engine: as of `Auto`.
        compat: whether cuFile's own compat mode will do, in which the CPU reads.
        threads: as of `Auto`.

    Raises:
        OptionError: if one cannot be used.
    """

    name: ClassVar[BackendChoice] = "gds"
    engine: Literal["cufile", "kvikio"] = "cufile"
    compat: bool = False
    threads: int | None = None

    def __post_init__(self) -> None:
        requested(self)


def requested(backend: BackendChoice | Auto | Bounce | Gds | BackendRow) -> BackendRequest:
    """The request for a backend that is given by its name, as a value, or as the row of another library's.

    Raises:
        OptionError: if there is no such backend, or an option of it cannot be used.
    """
    if not isinstance(backend, Auto | Bounce | Gds):
        if not isinstance(backend, BackendRow) and backend not in BACKEND_CHOICES:
            raise OptionError(
                f"is {backend!r}",
                option="backend",
                remedy=f"Pass one of {', '.join(map(repr, BACKEND_CHOICES))}, a value such as "
                "`gdsload.Auto(threads=8)`, or a BackendRow.",
            )
        return BackendRequest(backend)
    engine = "cufile" if isinstance(backend, Bounce) else backend.engine
    if engine not in ("cufile", "kvikio"):
        raise OptionError(f"is {engine!r}", option="engine", remedy='Pass "cufile" or "kvikio".')
    compat = isinstance(backend, Gds) and backend.compat
    if compat not in (False, True):
        raise OptionError(f"is {compat!r}", option="compat", remedy="Pass True or False.")
    pinned = PINNED_BYTES if isinstance(backend, Gds) else parse_bytes(backend.pinned, "pinned", at_least=2**20)
    threads = check_threads(backend.threads, "threads")
    return BackendRequest(backend.name, engine=engine, allow_compat=compat, pinned_bytes=pinned, read_threads=threads)


def check_threads(threads: int | None, name: str) -> int | None:
    """Return a number of threads; None for as many as suits.

    Raises:
        OptionError: if it is no whole number from 1 to 512.
    """
    return None if threads is None else check_whole(threads, name, 1, _MOST_THREADS)
