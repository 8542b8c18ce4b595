"""Blocks of tensors out of files: few reads of many bytes, and copies into memory that is the caller's own."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from gdsload.backends.base import Backend
from gdsload.backends.names import BackendChoice
from gdsload.backends.request import BackendRequest
from gdsload.backends.select import choose, default_register_bytes
from gdsload.errors import LoaderClosedError
from gdsload.shards.files import Files
from gdsload.shards.format.header import TensorEntry
from gdsload.shards.gather_host import gather_pieces
from gdsload.shards.page_cache import looks_resident
from gdsload.shards.reads import Extents, concat_extents, cut, shares
from gdsload.shards.values import no_inference, torch_dtype
from gdsload.system.arrays import IntArray
from gdsload.system.copies import copy_runs
from gdsload.system.share import processors
from gdsload.system.streams import on, record

__all__ = ["Block", "TensorReader", "block_of"]


_PIECE_BYTES = 4 * 2**20
"""The longest extent: so that a read has some for each of a backend's threads."""
_READ_BYTES = 64 * 2**20
_MOST_COPYING = 4
"""Threads that copy on the host."""
_WAITING = 3
"""Threads that wait for reads to a GPU by turns: two reads are under way while a third is copied into its tensors."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a tensor: runs of bytes of a file, one after the other.

    Attributes:
        file: the file.
        offset: byte offset of each run.
        run_bytes: bytes of each.
        shape: the block's shape.
        dtype: its element type.
    """

    file: int
    offset: IntArray
    run_bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        return len(self.offset) * self.run_bytes

    def pieces(self) -> Extents:
        """The runs, in pieces that are not too long."""
        count = len(self.offset)
        return cut(
            Extents(np.full(count, self.file), self.offset, np.full(count, self.run_bytes)), _PIECE_BYTES
        ).extents


def block_of(file: int, entry: TensorEntry, bounds: Sequence[tuple[int, int]], kept: Iterable[int]) -> Block:
    """A block of a tensor.

    Args:
        file: the tensor's file.
        entry: where it is.
        bounds: of each dimension the first index, and the one after the last.
        kept: the dimensions that the block has; of others there is one index.
    """
    shape = tuple(bounds[axis][1] - bounds[axis][0] for axis in kept)
    if any(low >= high for low, high in bounds):  # other dimensions may have any length then
        return Block(file, np.zeros(0, np.int64), 0, shape, torch_dtype(entry.dtype))
    whole, stride = len(bounds), entry.dtype.itemsize
    while whole and bounds[whole - 1] == (0, entry.shape[whole - 1]):
        whole -= 1
        stride *= entry.shape[whole]
    offset, run = np.array([entry.begin]), stride
    for axis in reversed(range(whole)):
        low, high = bounds[axis]
        if axis == whole - 1:
            offset, run = offset + low * stride, (high - low) * stride
        else:
            offset = (np.arange(low, high)[:, None] * stride + offset).reshape(-1)
        stride *= entry.shape[axis]
    return Block(file, offset, run, shape, torch_dtype(entry.dtype))


class _Copies:
    """What is read, and where it goes; arrays of one length. Its methods may be called from several threads.

    Args:
        blocks: what tensors are filled with; none is empty.
        device: where the tensors go.

    Attributes:
        wanted: pieces of files.
        which: index of the tensor that each is of.
        position: byte position in that tensor.
    """

    def __init__(self, blocks: Sequence[Block], device: torch.device) -> None:
        parts = [block.pieces() for block in blocks]
        self.wanted = concat_extents(parts)
        self.which = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        self.position = np.concatenate([np.cumsum(part.nbytes) - part.nbytes for part in parts])
        self._blocks, self._device = blocks, device
        self._outs: dict[int, torch.Tensor] = {}
        self._lock = threading.Lock()

    def out(self, index: int) -> torch.Tensor:
        """A tensor; its memory is allocated when it is first asked for, while bytes are being read."""
        with self._lock:
            if index not in self._outs:
                with no_inference():
                    block = self._blocks[index]
                    self._outs[index] = torch.empty(block.shape, dtype=block.dtype, device=self._device)
            return self._outs[index]


class TensorReader:
    """Reads blocks of tensors. Its methods may be called from several threads.

    Args:
        files: the files, mapped; closed with this.
        device: where tensors go.
        backend: how the bytes travel.

    Attributes:
        owner: the process that may use it. After a fork, another thread may have been in the middle of a read.
        closed: whether it was closed.
    """

    def __init__(self, files: Files, device: torch.device, backend: BackendChoice) -> None:
        self._files, self._device = files, device
        self._request = BackendRequest(backend, device, register_bytes=default_register_bytes())
        self._backend: Backend | None = None
        self._on_gpu = self._request.placement == "gpu"
        self._lock = threading.RLock()
        self.closed = self._reading = False
        self.owner = os.getpid()

    def read(self, blocks: Sequence[Block]) -> list[torch.Tensor]:
        """Blocks as tensors, each in its own memory.

        Raises:
            BackendUnavailableError: if the backend that was asked for cannot be used.
            ReadError: if bytes cannot be read, or a file was changed.
            LoaderClosedError: after `close`.
        """
        with self._lock:  # or `close` might take the memory away that is copied from
            self._reading = True
            try:
                return self._read(blocks, self._open())
            finally:
                self._reading = False

    def _read(self, blocks: Sequence[Block], backend: Backend) -> list[torch.Tensor]:
        where = self._device if self._on_gpu else torch.device("cpu")
        filled = [block for block in blocks if block.nbytes]
        outs: Iterator[torch.Tensor] = iter(())
        if filled:
            copies = _Copies(filled, where)
            self._fill(backend, copies)
            self._files.watch.check_now(np.unique(copies.wanted.file))  # last of all, or bytes might be another file's
            outs = map(copies.out, range(len(filled)))
        with no_inference():
            found = [
                next(outs) if block.nbytes else torch.empty(block.shape, dtype=block.dtype, device=where)
                for block in blocks
            ]
        return found if where == self._device else [out.to(self._device) for out in found]

    def _open(self) -> Backend:
        if self.closed:
            raise LoaderClosedError("the file was closed")
        if self._backend is None:
            self._backend = choose(self._best(), self._files).backend
        return self._backend

    def _best(self) -> BackendRequest:
        """The request for a backend that suits files which are read once.

        To register their pages takes longer than to copy them once (benchmarks/gpu/README.md), so none are unless that
        was asked for by name.
        """
        request = self._request
        if request.backend != "auto" or not self._on_gpu:
            return request
        every = np.arange(len(self._files.sources))
        self._files.ensure_open(every)
        resident = looks_resident(self._files, concat_extents([self._files.whole(file) for file in every.tolist()]))
        return replace(request, backend="bounce" if resident else "auto", register_bytes=0)

    def _fill(self, backend: Backend, copies: _Copies) -> None:
        """Read all pieces and copy them: some reads under way while others are copied."""
        stream = torch.cuda.current_stream(self._device) if self._on_gpu else None
        parts = shares(copies.wanted.nbytes, _READ_BYTES)
        count = _WAITING if self._on_gpu else min(_MOST_COPYING, processors())
        if len(parts) == 1 or count == 1:
            for part in parts:
                self._fill_part(backend, copies, part, stream)
            return
        with ThreadPoolExecutor(min(count, len(parts)), "gdsload-weights") as threads:
            for _ in threads.map(lambda part: self._fill_part(backend, copies, part, stream), parts):
                pass  # what failed first is raised here, and what nobody has begun is left

    def _fill_part(self, backend: Backend, copies: _Copies, part: range, stream: torch.cuda.Stream | None) -> None:
        # The tensors' memory belongs to the current stream, too: it is free for copies in the order of that one alone.
        with nullcontext() if stream is None else on(stream):
            self._read_part(backend, copies, part, stream)

    def _read_part(self, backend: Backend, copies: _Copies, part: range, stream: torch.cuda.Stream | None) -> None:
        low, high = part.start, part.stop
        wanted = copies.wanted[low:high]
        backend.check(wanted.file)  # touching a mapping that was cut short would end the process
        pending = backend.read(wanted)
        try:
            edges = [0, *(np.flatnonzero(np.diff(copies.which[low:high])) + 1).tolist(), high - low]
            outs = [copies.out(int(copies.which[low + first])) for first in edges[:-1]]
            pending.completion.wait()
            for (first, stop), tensor in zip(pairwise(edges), outs, strict=True):
                out = tensor.view(-1).view(torch.uint8)[int(copies.position[low + first]) :]
                addresses, nbytes = pending.addresses[first:stop], wanted.nbytes[first:stop]
                if stream is None:
                    gather_pieces(addresses, nbytes, 1, out.data_ptr())
                else:
                    copy_runs(addresses, nbytes, self._files.in_mappings, out)
        finally:
            with suppress(Exception):
                pending.completion.wait()  # also after Ctrl-C: the memory that is read into is freed
            if stream is not None:
                record(stream).synchronize()  # also for copies that were queued before an error
            pending.release()
        pending.count()

    def close(self) -> None:
        """Close the backend and the files; may be called twice. Waits for other threads that read.

        Raises:
            LoaderClosedError: if a signal's handler calls it in the middle of `read`; nothing is closed then.
        """
        if self.owner != os.getpid():
            self.closed = True  # what is open is the parent's
            return
        with self._lock:
            if self._reading:
                raise LoaderClosedError("a signal's handler closed the file while a tensor was being read")
            self.closed = True
            (self._backend or self._files).close()
