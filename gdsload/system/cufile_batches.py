"""Many reads by few calls of cuFile: its batch API, of which numpy fills in the parameters.

cuFile takes up to 128 reads at once (cufile.json, io_batchsize). Several batches are under way, of which the oldest is
waited for, so that the drive always has reads to do. All are submitted by one thread at a time: with eight, each with a
batch of its own, cuFile hung in its compat mode (cuFile 1.15, seen on two machines).
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from gdsload.system.arrays import IntArray
from gdsload.system.memory import address_of

__all__ = ["CufileBatches"]

_READS = 128
_BATCHES = 4

# cufile.h, CUfileIOParams_t and CUfileIOEvents_t, of 64-bit machines.
_PARAMS = np.dtype({
    "names": ["mode", "base", "offset", "position", "nbytes", "handle", "opcode", "cookie"],
    "formats": ["i4", "u8", "i8", "i8", "u8", "u8", "i4", "u8"],
    "offsets": [0, 8, 16, 24, 32, 40, 48, 56],
    "itemsize": 64,
})  # fmt: skip
_EVENTS = np.dtype({
    "names": ["cookie", "status", "nbytes"], "formats": ["u8", "i4", "u8"], "offsets": [0, 8, 16], "itemsize": 24
})  # fmt: skip
_BATCH, _READ, _COMPLETE = 1, 0, 0x10
"""CUFILE_BATCH of CUfileBatchMode_t, CUFILE_READ of CUfileOpcode_t, CUFILE_COMPLETE of CUfileStatus_t."""


class _Batch(NamedTuple):
    """A batch, and the memory that cuFile is told its reads in."""

    id: int
    params: Any
    events: Any


class CufileBatches:
    """Reads many parts of files into device memory. Its methods may be called from several threads.

    Args:
        cufile: the module `cuda.bindings.cufile`, its driver open.
    """

    def __init__(self, cufile: Any) -> None:
        self._cufile = cufile
        self._idle: list[_Batch] = []
        self._lock = threading.Lock()

    def read(
        self, handles: IntArray, bases: IntArray, positions: IntArray, nbytes: IntArray, offsets: IntArray
    ) -> IntArray:
        """Make reads and wait for all of them; arrays of one length.

        Args:
            handles: cuFile's handles of files.
            bases: address of the device memory that each read goes to, as it was registered, if it was.
            positions: byte position in that memory.
            nbytes: how many bytes.
            offsets: byte offset in the file.

        Returns:
            For each read the bytes that were read; 0 if it failed.

        Raises:
            Exception: what the bindings raise, if cuFile takes no batch. No read is under way then.
        """
        results = np.zeros(len(nbytes), np.int64)
        under_way: deque[tuple[_Batch, int]] = deque()
        begun = 0
        with self._lock:
            try:
                while begun < len(results):
                    while begun < len(results) and len(under_way) < _BATCHES:
                        chosen = slice(begun, min(begun + _READS, len(results)))
                        columns = (column[chosen] for column in (handles, bases, positions, nbytes, offsets))
                        under_way.append((self._submit(begun, *columns), chosen.stop - begun))
                        begun = chosen.stop
                    self._collect(*under_way.popleft(), results)
            finally:
                while under_way:
                    self._collect(*under_way.popleft(), results)
        return results

    def _submit(
        self, first: int, handles: IntArray, bases: IntArray, positions: IntArray, nbytes: IntArray, offsets: IntArray
    ) -> _Batch:
        """Begin reads, the first of which has this number."""
        batch = self._idle.pop() if self._idle else self._new()
        try:
            params = batch.params[: len(nbytes)]
            params["base"], params["position"], params["offset"] = bases, positions, offsets
            params["nbytes"], params["handle"] = nbytes, handles.view(np.uint64)
            params["cookie"] = np.arange(first, first + len(nbytes))
            self._cufile.batch_io_submit(batch.id, len(nbytes), address_of(batch.params), 0)
        except BaseException:
            self._idle.append(batch)
            raise
        return batch

    def _collect(self, batch: _Batch, under_way: int, results: IntArray) -> None:
        """Wait for the reads of a batch."""
        while under_way:
            count = np.array([under_way], np.uint32)
            self._cufile.batch_io_get_status(batch.id, under_way, address_of(count), address_of(batch.events), 0)
            ended = batch.events[: int(count[0])]
            well = ended[ended["status"] == _COMPLETE]
            results[well["cookie"].astype(np.int64)] = well["nbytes"].astype(np.int64)
            under_way -= len(ended)
        self._idle.append(batch)

    def _new(self) -> _Batch:
        params, events = np.zeros(_READS, _PARAMS), np.zeros(_READS, _EVENTS)
        params["mode"], params["opcode"] = _BATCH, _READ
        return _Batch(int(self._cufile.batch_io_set_up(_READS)), params, events)

    def close(self) -> None:
        """Destroy all batches. None may be under way; may be called twice."""
        with self._lock:
            while self._idle:
                self._cufile.batch_io_destroy(self._idle.pop().id)
