"""The backends by name, one row each: what is known before one is opened, whether it can be, and how it is."""

from __future__ import annotations

from collections.abc import Sequence

from gdsload.backends.bounce.bounce import BounceBackend
from gdsload.backends.gds.gds import GdsBackend
from gdsload.backends.host import HostBackend
from gdsload.backends.mapped import MappedBackend
from gdsload.backends.names import BackendName
from gdsload.backends.request import BackendRequest, BackendRow, OpenedBackend, Probing, one_way, probe_each
from gdsload.errors import BackendUnavailableError
from gdsload.shards.files import Files
from gdsload.system.probe import CufileProbe
from gdsload.system.streams import has_streams

IN_REACH = "mapped: every byte of this dataset can be gathered from the page cache by the GPU"
_BY_NAME = "asked for by name"
_DOCTOR = "Run `gdsload doctor PATH`: it says what is missing."


def expected_host(request: BackendRequest) -> str:
    """Why batches are built in CPU memory."""
    where = "batches are built in CPU memory"
    if request.per_sample:
        where = "samples are transformed and batches are built in CPU memory"
    if request.device.type == "cpu":
        return where
    pinned = " from pinned memory" if has_streams(request.device) else ""
    return f"{where}, and torch copies them to {request.device}{pinned}"


def _open_host(request: BackendRequest, files: Files, _found: CufileProbe | None) -> OpenedBackend:
    return OpenedBackend(HostBackend(files, **request.threads), lambda: "host", lambda: expected_host(request))


def _check_mapped(request: BackendRequest, _paths: Sequence[str], mapped: bool, _probe: Probing) -> None:
    if refusal := MappedBackend.refusal(request.device, mapped=mapped):
        raise BackendUnavailableError(f"backend 'mapped' cannot be used: {refusal[0]}", remedy=refusal[1])


def _open_mapped(request: BackendRequest, files: Files, _found: CufileProbe | None) -> OpenedBackend:
    backend = MappedBackend(files, request.device, register_bytes=request.register_bytes)
    return OpenedBackend(backend, lambda: "mapped", lambda: _BY_NAME, answer=lambda: IN_REACH)


def _open_bounce(request: BackendRequest, files: Files, _found: CufileProbe | None) -> OpenedBackend:
    backend = BounceBackend(files, request.device, pinned_bytes=request.pinned_bytes, **request.threads)
    return one_way(backend, "bounce", _BY_NAME, "through pinned host memory")


def _check_gds(request: BackendRequest, paths: Sequence[str], _mapped: bool, probe: Probing) -> CufileProbe | None:
    found, path = probe_each(probe, paths, request.device)
    if not paths:  # nothing will be read
        return found
    if found.status != "ok":
        raise BackendUnavailableError(f"cuFile cannot be used here: {found.reason}", file=path, remedy=_DOCTOR)
    if not found.proven and not request.allow_compat:
        raise BackendUnavailableError(
            f"cuFile works here, but not by DMA: a trial read took the path {found.path}, by cuFile's counters",
            file=path,
            remedy=f"{_DOCTOR} To use cuFile's own compat mode nevertheless, pass `backend=gdsload.Gds(compat=True)`.",
        )
    return found


def _open_gds(request: BackendRequest, files: Files, found: CufileProbe | None) -> OpenedBackend:
    assert found is not None  # noqa: S101 - for the type checker: `_check_gds` returns it
    # In compat mode a batch may wait for slabs for ever if somebody has configured fewer (system/cufile_batches), and
    # there is nothing to be gained: it is the CPU that reads.
    backend = GdsBackend(
        files, request.device,
        engine=request.engine, register=found.proven, batches=found.batches and found.proven, **request.threads,
    )  # fmt: skip
    way = "from the drive by DMA" if found.proven else "by cuFile's compat mode, in which the CPU reads"
    return one_way(backend, "gds", f"{_BY_NAME}; a trial read took the path {found.path}", way)


BACKENDS: dict[BackendName, BackendRow] = {
    "gds": BackendRow(GdsBackend, True, _open_gds, _check_gds),
    "mapped": BackendRow(MappedBackend, True, _open_mapped, _check_mapped),
    "bounce": BackendRow(BounceBackend, True, _open_bounce),
    "host": BackendRow(HostBackend, False, _open_host),
}


def row_of(backend: BackendName | BackendRow) -> BackendRow:
    """The row of a backend, by its name or as it was given."""
    return backend if isinstance(backend, BackendRow) else BACKENDS[backend]
