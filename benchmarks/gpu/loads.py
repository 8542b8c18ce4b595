"""Ways to load all rows into GPU memory, and the limits to compare them with."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

import numpy as np
import torch

from benchmarks.gpu.data import ROW_BYTES, Data
from benchmarks.gpu.limits import DirectReads, PinnedCopies
from gdsload.backends.base import Backend
from gdsload.backends.bounce.bounce import BounceBackend
from gdsload.backends.gds.gds import GdsBackend
from gdsload.backends.mapped import MappedBackend
from gdsload.kernels.gather_device import DeviceGather
from gdsload.kernels.launch import Grid
from gdsload.shards.reads import Extents
from gdsload.system.streams import DeviceBytes, side_stream

__all__ = ["Bounce", "CopyPeak", "DiskPeak", "Gds", "Load", "MappedRows", "MappedStream", "compare"]

_GROUP_BYTES = 64 * 2**20
_AHEAD = 4
_BLOCK_BYTES = 8 * 2**20


def compare(found: torch.Tensor, expected: torch.Tensor, where: str) -> None:
    """Raise RuntimeError if two tensors differ."""
    if not torch.equal(found, expected):
        raise RuntimeError(f"the bytes differ: {where}")


class Load:
    """One way to load all rows.

    Attributes:
        name: its key in the record.
        title: what it is, for the table.
        cold: whether it is also measured from a cold disk.
    """

    name = title = ""
    cold = False

    def __init__(self, data: Data, device: torch.device) -> None:
        self.data, self.device = data, device
        self.share = 1.0
        """Share of the data that `run` loads."""

    def open(self) -> None:
        """Make everything that is not timed: registrations, rings, handles."""

    def run(self) -> int:
        """Load everything once, and wait until it is there; returns the number of bytes."""
        raise NotImplementedError

    def verify(self) -> int:
        """Load everything once and compare it with the reference; returns the number of bytes that were compared.

        Raises:
            RuntimeError: if a byte differs.
        """
        return 0

    def paths(self) -> dict[str, int]:
        """Bytes by path so far, from counters."""
        return {}

    def close(self) -> None:
        """Give everything back."""


class CopyPeak(Load):
    """The speed of the link: pinned memory, copied in large pieces."""

    name, title = "copy-peak", "pinned memory to the GPU, 256 MiB copies (P)"

    def open(self) -> None:
        """See `Load.open`."""
        self._copies = PinnedCopies(self.device)

    def run(self) -> int:
        """See `Load.run`."""
        return self._copies.run(self.data.nbytes)


class DiskPeak(Load):
    """The speed of the disk: threads that read with O_DIRECT, and nothing else."""

    name, title, cold = "disk-peak", "O_DIRECT into pinned memory, 12 threads of 8 MiB (D)", True

    def open(self) -> None:
        """See `Load.open`."""
        self._reads = DirectReads(self.data.paths, pinned=True)

    def run(self) -> int:
        """See `Load.run`."""
        return self._reads.run()

    def close(self) -> None:
        """See `Load.close`."""
        del self._reads


class _Streamed(Load):
    """All rows in large pieces, some of them under way at once."""

    backend: Backend

    def make(self) -> Backend:
        """The backend, opened."""
        raise NotImplementedError

    def open(self) -> None:
        """See `Load.open`."""
        self.backend = self.make()
        self._pieces = self.data.pieces(_BLOCK_BYTES)
        self._step = _GROUP_BYTES // _BLOCK_BYTES

    def _landings(self, share: float = 1.0) -> Any:
        under_way: deque[tuple[Any, Extents]] = deque()
        for low in range(0, max(round(len(self._pieces) * share), 1), self._step):
            chosen = slice(low, low + self._step)
            pieces = self._pieces
            wanted = Extents(pieces.file[chosen], pieces.offset[chosen], pieces.nbytes[chosen])
            under_way.append((self.backend.read(wanted), wanted))
            if len(under_way) > _AHEAD:
                yield under_way.popleft()
        yield from under_way

    def run(self) -> int:
        """See `Load.run`."""
        total = 0
        for landing, wanted in self._landings(self.share):
            landing.completion.wait()
            landing.release()
            total += wanted.total_bytes
        return total

    def verify(self) -> int:
        """See `Load.verify`."""
        flat, position = self.data.reference.view(-1), 0
        for landing, wanted in self._landings():
            landing.completion.wait()
            for address, nbytes in zip(landing.addresses.tolist(), wanted.nbytes.tolist(), strict=True):
                found = torch.as_tensor(DeviceBytes(address, nbytes), device=self.device)
                compare(found, flat[position : position + nbytes], f"{self.name}, byte {position}")
                position += nbytes
            landing.release()
        return position

    def paths(self) -> dict[str, int]:
        """See `Load.paths`."""
        return self.backend.bytes_by_path()

    def close(self) -> None:
        """See `Load.close`."""
        self.backend.close()


class Bounce(_Streamed):
    """The bounce backend into its slots."""

    name, title, cold = "bounce", "gdsload bounce", True

    def make(self) -> Backend:
        """See `_Streamed.make`."""
        return BounceBackend(self.data.files(mapped=False), self.device)


class Gds(_Streamed):
    """The gds backend into its slots."""

    cold = True

    def __init__(self, data: Data, device: torch.device, engine: str) -> None:
        super().__init__(data, device)
        self.engine, self.name, self.title = engine, f"gds-{engine}", f"gdsload gds, engine {engine}"

    def make(self) -> Backend:
        """See `_Streamed.make`."""
        return GdsBackend(self.data.files(mapped=False), self.device, engine=self.engine, register=False)


class MappedStream(_Streamed):
    """The mapped backend, copied in order by the copy engine."""

    name, title = "mapped-stream", "gdsload mapped, registered, in order"

    def make(self) -> Backend:
        """See `_Streamed.make`."""
        files = self.data.files(mapped=True)
        backend = MappedBackend(files, self.device, register_bytes=2**40)
        self._gather = DeviceGather(self.device, files.in_mappings)
        self._stream = side_stream(self.device)
        self._out = torch.empty(_GROUP_BYTES, dtype=torch.uint8, device=self.device)
        return backend

    def open(self) -> None:
        """See `Load.open`."""
        super().open()
        for landing, _ in self._landings():  # registers everything
            landing.release()

    def _copied(self) -> Any:
        for landing, wanted in self._landings():
            nbytes = wanted.total_bytes
            with torch.cuda.stream(self._stream):
                self._gather.pieces(landing.addresses, wanted.nbytes, 1, [self._out[:nbytes]], [len(wanted)])
            yield self._out[:nbytes]
            landing.release()

    def run(self) -> int:
        """See `Load.run`."""
        for _ in self._copied():
            pass
        self._stream.synchronize()
        return self.data.nbytes

    def verify(self) -> int:
        """See `Load.verify`."""
        flat, position = self.data.reference.view(-1), 0
        for out in self._copied():
            self._stream.synchronize()
            compare(out, flat[position : position + len(out)], f"{self.name}, byte {position}")
            torch.cuda.synchronize()
            position += len(out)
        return position


class MappedRows(MappedStream):
    """The mapped backend, rows of 4 KiB gathered in random order.

    Args:
        data: the rows.
        device: the GPU.
        blocks: thread blocks of the kernel; None for the default; 0 for torch's `index_select`.
    """

    def __init__(self, data: Data, device: torch.device, blocks: int | None = None) -> None:
        super().__init__(data, device)
        self._blocks = blocks
        how = {None: "default grid", 0: "torch.index_select"}.get(blocks, f"{blocks} thread blocks")
        self.name = "mapped-rows" if blocks is None else f"mapped-rows-{blocks or 'torch'}"
        self.title = f"gdsload mapped, registered, random rows of 4 KiB, {how}"

    def make(self) -> Backend:
        """See `_Streamed.make`."""
        backend = super().make()
        files = cast("MappedBackend", backend).files
        self._gather = DeviceGather(
            self.device,
            files.in_mappings,
            grid=Grid(self._blocks, 256, 4) if self._blocks else None,
            kernel=self._blocks != 0,
        )
        self._order = np.random.default_rng(1).permutation(len(self.data.reference))
        rows = self.data.rows()
        self._addresses = (files.base[rows.file] + rows.offset)[self._order]
        return backend

    def _copied(self) -> Any:
        step = _GROUP_BYTES // ROW_BYTES
        for low in range(0, len(self._addresses), step):
            chosen = self._addresses[low : low + step]
            out = self._out[: len(chosen) * ROW_BYTES]
            with torch.cuda.stream(self._stream):
                self._gather.rows(chosen, ROW_BYTES, out)
            yield out

    def verify(self) -> int:
        """See `Load.verify`."""
        low, order = 0, torch.from_numpy(self._order).to(self.device)
        for out in self._copied():
            self._stream.synchronize()
            rows = out.view(-1, ROW_BYTES)
            compare(rows, self.data.reference[order[low : low + len(rows)]], f"{self.name}, row {low}")
            torch.cuda.synchronize()
            low += len(rows)
        return low * ROW_BYTES

    def paths(self) -> dict[str, int]:
        """See `Load.paths`. The gather is called by hand here, so that nothing is counted."""
        return {}
