"""A dataset of shards, as torch's datasets are: `len`, `dataset[i]`, `__getitems__`."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.backends.host import HostBackend
from gdsload.engine.assemble import Assembler, BatchForm
from gdsload.engine.batch_source import made_at_once
from gdsload.engine.codecs import codecs_of
from gdsload.engine.landed import LandedSource
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Job, OneBatch, Selection
from gdsload.errors import FileChangedError, OptionError, SampleIndexError
from gdsload.shards.catalog import Catalog, open_catalog
from gdsload.shards.drive import LOCAL, Drive
from gdsload.shards.format.schema import Schema
from gdsload.shards.format.stored import StoredSchema
from gdsload.shards.identity import ShardSource
from gdsload.shards.shard_table import ShardTable
from gdsload.shards.verify import VerifyReport, verify_shards
from gdsload.system.memory import BatchPool
from gdsload.system.threads import Closer

__all__ = ["ShardDataset", "ShardInfo"]

_MOST_MAPPED = 32_768
"""Linux lets a process have 65 530 mappings (vm.max_map_count); half of them are the user's."""


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard of a dataset.

    Attributes:
        file: its path.
        samples: its number of samples.
        bytes: its length.
    """

    file: str
    samples: int
    bytes: int


class ShardDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """Samples in shards: a map-style dataset for `gdsload.DataLoader`, or for torch's own.

    A sample is a dict: CPU tensors, and `str` or `bytes` for fields of those types.

    Args:
        path: a folder that `ShardWriter` wrote; a folder of safetensors files, taken in order of their names; or one
            such file. In files that gdsload did not write, all tensors must agree in their first dimension, which
            counts the samples.
        mmap: whether shards are mapped into memory. A file that somebody else cuts short at the very moment in which
            it is read through a mapping kills the process, and so does a page that was dropped from memory and cannot
            be read again; without, it is read with preadv, which costs a copy and raises an error instead. None:
            mapped, unless the dataset has more than 32 768 shards.

    Raises:
        DatasetNotFoundError: if there is nothing at `path`.
        UnfinishedDatasetError: if the folder holds shards that a writer never finished.
        FormatError: if something there is damaged; all that is wrong is in `.problems`.
    """

    drive: Drive = LOCAL
    """What brings samples out of the shards. A subclass may have another one."""

    def __init__(self, path: str | os.PathLike[str], *, mmap: bool | None = None) -> None:
        self._catalog: Catalog = open_catalog(os.fspath(path))
        self._mmap = mmap
        self._lock = threading.Lock()
        self._reader: _Reader | None = None

    @property
    def path(self) -> str:
        """Where the dataset is."""
        return self._catalog.path

    @property
    def schema(self) -> Schema:
        """The fields of a sample, with their element types and shapes."""
        return self._catalog.schema

    @property
    def stored(self) -> StoredSchema:
        """The schema, and which of its fields are packed: stored together as rows."""
        return self._catalog.stored

    @property
    def shards(self) -> tuple[ShardInfo, ...]:
        """The shards, in order."""
        return tuple(ShardInfo(source.path, source.samples, source.file_bytes) for source in self._catalog.sources)

    @property
    def num_bytes(self) -> int:
        """Bytes of all shard files."""
        return sum(source.file_bytes for source in self._catalog.sources)

    @property
    def digest(self) -> str:
        """SHA-256 that names the dataset's content: schema, shards and their checksums."""
        return self._catalog.digest

    @property
    def mmap(self) -> bool:
        """Whether shards are mapped into memory."""
        return len(self._catalog.sources) <= _MOST_MAPPED if self._mmap is None else self._mmap

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of samples of each shard, shape ``[shards]``."""
        return np.array([source.samples for source in self._catalog.sources], dtype=np.int64)

    @property
    def sources(self) -> tuple[ShardSource, ...]:
        """The shards as files to be opened and compared with what the dataset says of them."""
        return self._catalog.sources

    def __len__(self) -> int:
        return self._catalog.samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int] | NDArray[np.integer[Any]] | torch.Tensor) -> list[dict[str, Any]]:
        """Many samples at once, as torch's DataLoader asks for them; much faster than one by one.

        Args:
            indices: sample indices from ``-len(self)`` to ``len(self) - 1``.

        Raises:
            SampleIndexError: if one is outside.
            OptionError: if they are a mask.
            ReadError: if a shard cannot be read, or was changed.
            FormatError: if a shard is damaged.
        """
        return self._open_reader().samples(self._ids(indices))

    def read_batch(self, indices: Sequence[int] | NDArray[np.integer[Any]] | torch.Tensor) -> dict[str, Any]:
        """Many samples as one batch, as `ShardWriter.write_batch` takes it.

        Args:
            indices: see `__getitems__`.

        Returns:
            Of a fixed field a tensor ``[samples, *shape]``, of a ragged one the pair (values ``[rows, ...]``, offsets
            ``[samples + 1]``), of a text field a list.

        Raises:
            GdsloadError: see `__getitems__`.
        """
        return self._open_reader().batch(self._ids(indices))

    def sample_bytes(self, indices: Sequence[int] | NDArray[np.integer[Any]] | torch.Tensor) -> NDArray[np.int64]:
        """How many bytes each of these samples takes in a shard, offsets included; shape ``[samples]``.

        Raises:
            GdsloadError: see `__getitems__`.
        """
        return self._open_reader().sizes(self._ids(indices))

    def _ids(self, indices: Sequence[int] | NDArray[np.integer[Any]] | torch.Tensor) -> NDArray[np.int64]:
        """The samples that indices mean."""
        length = len(self)
        ids = indices if isinstance(indices, np.ndarray) and indices.dtype == np.int64 else _whole(indices)
        outside = (ids < -length) | (ids >= length)
        if outside.any():
            bad = int(ids[outside][0])
            raise SampleIndexError(f"sample {bad} does not exist: the dataset has {length}", file=self.path)
        return np.where(ids < 0, ids + length, ids)

    def verify(self, *, deep: bool = False, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Read everything and compare it with its checksums.

        Args:
            deep: also look at what the bytes mean, in files without checksums, too: texts must be UTF-8 and booleans
                0 or 1. Values that are NaN or infinite are no fault; they are counted.
            progress: called with the bytes checked so far and the bytes in all, from several threads, one at a time.

        Returns:
            What was checked. Files that gdsload did not write have no checksums: only their structure is checked.

        Raises:
            ChecksumError: if anything differs or cannot be read. All of it is in `.problems`, with file, bytes, field
                and samples; `.samples` are all samples that are spoiled.
            FormatError: if bytes are those that were written, but make no sense; likewise.
        """
        return verify_shards(self._catalog.sources, self._catalog.stored, deep=deep, progress=progress)

    def _open_reader(self) -> _Reader:
        """The reader of this process. After a fork, threads and locks of the parent's must not be used."""
        reader = self._reader
        if reader is None or reader.owner != os.getpid():
            with self._lock:
                if self._reader is None or self._reader.owner != os.getpid():
                    self._reader = _Reader(self._catalog, self.mmap, self.drive)
                    Closer(self, self._reader.close)
                reader = self._reader
        return reader

    def __getstate__(self) -> dict[str, Any]:
        # Not the index: workers would get megabytes of it. They read it again, and it must be the same.
        return {"path": self.path, "mmap": self._mmap, "digest": self.digest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ShardDataset.__init__(self, state["path"], mmap=state["mmap"])
        if self.digest != state["digest"]:
            raise FileChangedError(
                "the dataset is no longer the one that was pickled",
                file=self.path,
                remedy="Open it again in the main process.",
            )

    def __repr__(self) -> str:
        shards = len(self._catalog.sources)
        return f"ShardDataset({self.path!r}, {len(self)} samples in {shards} shards, {self.schema!r})"


class _Reader:
    """Reads samples of a dataset in one process."""

    def __init__(self, catalog: Catalog, mapped: bool, drive: Drive) -> None:
        self.owner = os.getpid()
        self._table = ShardTable.of(catalog.sources, catalog.stored, mapped=mapped, drive=drive)
        self._backend = HostBackend(self._table.files)
        self._schema = catalog.schema
        fields = tuple(catalog.schema)
        form = BatchForm(codecs_of(catalog.stored, fields, "offsets"), fields=fields)
        self._assembler = Assembler(form, BatchPool(keep_bytes=0))

    def samples(self, ids: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Samples by id, as dicts of tensors that share no memory with later ones."""
        if not len(ids):
            return []
        batch = self.batch(ids)
        split = {name: _split(batch[name]) for name in self._schema}
        return [dict(zip(split, values, strict=True)) for values in zip(*split.values(), strict=True)]

    def batch(self, ids: NDArray[np.int64]) -> dict[str, Any]:
        """Samples by id as one batch."""
        job = Job(self._table, OneBatch(ids), Selection(), self._assembler.form.columns)
        source = LandedSource(job, self._backend, self._assembler, LoaderStats())
        found: dict[str, Any] = made_at_once(source, 0).batches[0]
        return found

    def sizes(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of samples in a shard."""
        found = self._table.locate(ids)
        sizes: NDArray[np.int64] = np.full(len(ids), self._schema.fixed_bytes, np.int64)
        for name, field in self._table.columns.items():
            lengths = self._table.extents(name, found)[1]
            if lengths is not None:
                sizes += lengths * field.row_bytes + 8  # and an offset
        return sizes

    def close(self) -> None:
        if self.owner == os.getpid():
            self._backend.close()


def _whole(indices: Sequence[int] | NDArray[np.integer[Any]] | torch.Tensor) -> NDArray[np.int64]:
    """Whole numbers of whatever kind; what int64 cannot hold becomes something that is outside of any dataset, too.

    Raises:
        OptionError: if they are a mask.
    """
    if isinstance(indices, torch.Tensor | np.ndarray) and indices.dtype in (torch.bool, np.bool_):
        raise OptionError(
            f"indices are a mask, of shape {tuple(indices.shape)}",
            remedy="Pass the indices of what is true, as mask.nonzero().flatten() or np.flatnonzero(mask) has them.",
        )
    numbers = [operator.index(index) for index in indices]
    try:
        return np.array(numbers, np.int64)
    except OverflowError:
        clipped: NDArray[np.int64] = np.clip(np.array(numbers, object), -(2**63), 2**63 - 1).astype(np.int64)
        return clipped


def _split(value: Any) -> Sequence[Any]:
    """A batch's field, sample by sample."""
    if isinstance(value, list):
        return value
    if isinstance(value, tuple):
        values, offsets = value
        return torch.split(values, offsets.diff().tolist())
    return torch.unbind(value)
