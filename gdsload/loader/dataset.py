"""A dataset of shards, as torch's datasets are: `len`, `dataset[i]`, `__getitems__`."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset

from gdsload.backends.base import BackendStatus
from gdsload.engine.gpu.plain_tensors import each_tensor
from gdsload.errors import FileChangedError, OptionError, SampleIndexError
from gdsload.loader.described import dataset_html, dataset_text
from gdsload.loader.paths_and_devices import dataset_path, resolve_device
from gdsload.loader.sample_reader import CPU, SampleReader
from gdsload.loader.wanted import Indices, known_field, known_fields, whole_numbers
from gdsload.shards.catalog import Catalog, open_catalog
from gdsload.shards.files import OpenFiles
from gdsload.shards.format.schema import Schema
from gdsload.shards.format.stored import StoredSchema
from gdsload.shards.identity import ShardSource
from gdsload.shards.local_files import LocalFiles
from gdsload.shards.verify import VerifyReport, verify_shards
from gdsload.system.dropped import Closer

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
        mmap: whether shards are mapped into memory. A mapped file that is cut short while it is read kills the process,
            and so does a page of it that was dropped from memory and cannot be read again. False: files are read with
            preadv, which costs a copy and raises an error instead. None: mapped, unless the dataset has more than
            32 768 shards.

    Raises:
        DatasetNotFoundError: if there is nothing at `path`.
        UnfinishedDatasetError: if the folder holds shards that a writer never finished.
        FormatError: if something there is damaged; all that is wrong is in `.problems`.
    """

    open_files: ClassVar[OpenFiles] = LocalFiles
    """Makes the `gdsload.shards.files.Files` that the shards' bytes come from. A subclass may have its own."""

    def __init__(self, path: str | os.PathLike[str], *, mmap: bool | None = None) -> None:
        self._catalog: Catalog = open_catalog(dataset_path(path))
        self._mmap = mmap
        self._readers: dict[torch.device, SampleReader] = {}
        self._opening: dict[int, threading.RLock] = {}  # of each process: a fork may copy one that a thread holds

    @property
    def path(self) -> str:
        """The path of the dataset."""
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
        return self._catalog.num_bytes

    @property
    def digest(self) -> str:
        """SHA-256 that names the dataset's content: schema, shards and their checksums."""
        return self._catalog.digest

    @property
    def metadata(self) -> dict[str, Any]:
        """The dataset's metadata: names of classes, its source, and the metadata that its writer was given.

        `convert` writes ``"classes"``, the names of the classes of each field of labels, in order of their numbers, and
        ``"source"``, ``"options"`` and ``"gdsload"``. It is a copy, and `digest` does not depend on it.
        """
        return copy.deepcopy(dict(self._catalog.metadata))

    @property
    def mmap(self) -> bool:
        """True if shards are mapped into memory."""
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
        if isinstance(index, str) and index in self.schema:
            raise OptionError(
                f"a sample's index is a whole number, not {index!r}",
                remedy=f"Pass dataset.column({index!r}) for a field of all samples, or dataset[0][{index!r}] for one.",
            )
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Indices) -> list[dict[str, Any]]:
        """Many samples at once, as torch's DataLoader asks for them; much faster than one by one.

        Args:
            indices: sample indices from ``-len(self)`` to ``len(self) - 1``.

        Raises:
            SampleIndexError: if one is outside.
            OptionError: if they are a mask, or one is no whole number.
            ReadError: if a shard cannot be read, or was changed.
            FormatError: if a shard is damaged.
        """
        return self._open_reader().samples(self._ids(indices))

    def read_batch(self, indices: Indices, *, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Many samples as one batch, as `ShardWriter.write_batch` takes it.

        Args:
            indices: see `__getitems__`.
            fields: names of the fields to read; None for all.

        Returns:
            Of a fixed field a tensor ``[samples, *shape]``, of a ragged one the pair (values ``[rows, ...]``, offsets
            ``[samples + 1]``), of a text field a list.

        Raises:
            OptionError: if there is no such field.
            GdsloadError: see `__getitems__`.
        """
        return self._open_reader().batch(self._ids(indices), known_fields(self.schema, fields))

    def gather(
        self,
        indices: Indices,
        *,
        fields: Sequence[str] | None = None,
        device: str | torch.device | int | None = None,
    ) -> dict[str, Any]:
        """Many samples as one batch on a device, at the rate of a loader: features of a graph, or of a replay buffer.

        On a GPU, the first call begins to register shards in the page cache with CUDA. Once all are registered, the GPU
        gathers from them; other shards are read. They stay registered until the dataset is dropped. The batch is
        complete on the current stream. Calls of several threads overlap.

        Args:
            indices: sample indices as in `__getitems__`, in any order; they may repeat. Those on a GPU are copied to
                the host first, which waits for it.
            fields: names of the fields to read; None for all.
            device: where the batch goes; None for the current accelerator, or the CPU if there is none.

        Returns:
            As `read_batch`; texts are lists in CPU memory.

        Raises:
            OptionError: if there is no such field or device.
            BudgetError: if the device has no room for the batch and, where bytes are read, as much beside it.
            GdsloadError: see `__getitems__`.
        """
        ids, wanted, target = self._ids(indices), known_fields(self.schema, fields), resolve_device(device)
        if target.type in ("cpu", "cuda"):
            return self._open_reader(target).batch(ids, wanted)
        found: dict[str, Any] = each_tensor(self._open_reader().batch(ids, wanted), lambda one: one.to(target))
        return found

    def backend(self, device: str | torch.device | int | None = None) -> BackendStatus:
        """The backend that `gather` uses for a device, the reason, and the bytes it has moved, by path.

        Args:
            device: as of `gather`; for the CPU this counts what all other methods read, too.

        Raises:
            OptionError: if there is no such device.
        """
        target = resolve_device(device)
        return self._open_reader(target if target.type == "cuda" else CPU).status()

    def column(self, field: str) -> Any:
        """A field of all samples, in their order; read in pieces of some MiB, straight into its own memory.

        Returns:
            Of a fixed field a tensor ``[len(self), *shape]``, of a ragged one the pair (values ``[rows, ...]``, offsets
            int64 ``[len(self) + 1]``), of a text field a list.

        Raises:
            OptionError: if there is no such field.
            GdsloadError: see `__getitems__`.
        """
        known_field(self.schema, field)
        return self._open_reader().column(field)

    def lengths(self, field: str) -> torch.Tensor:
        """The number of rows of each sample in a ragged field, or of bytes in a text (in UTF-8); int64 ``[len(self)]``.

        Only the shards' offsets are read, 8 bytes a sample, and none of the samples.

        Raises:
            OptionError: if there is no such field, or it has one shape.
            GdsloadError: see `__getitems__`.
        """
        if not known_field(self.schema, field).ragged:
            raise OptionError(
                f"all samples of the field {field!r} have the shape {self.schema[field].shape}",
                remedy="Ask for the lengths of a ragged field, or of a text.",
            )
        return torch.from_numpy(self._open_reader().lengths(field))

    def select(self, indices: Indices) -> Subset[dict[str, Any]]:
        """The samples at some indices, in their order: torch's `Subset`, which a loader reads at full speed.

        Args:
            indices: see `__getitems__`.

        Returns:
            A subset whose `indices` are an int64 array ``[samples]``, from 0 to ``len(self) - 1``.

        Raises:
            SampleIndexError: if one is outside.
            OptionError: if they are a mask, or one is no whole number.
        """
        return _subset(self, self._ids(indices).copy())

    def filter(
        self, predicate: Callable[[dict[str, Any]], Any], *, fields: Sequence[str] | None = None
    ) -> Subset[dict[str, Any]]:
        """The samples that a predicate is true of, in their order; see `select`.

        Args:
            predicate: called with batches of neighbouring samples, as `read_batch` gives them, of up to 32 MiB and
                16 384 samples, one after the other in the calling thread. It returns which of them are kept: a tensor
                or an array of booleans, ``[samples]``.
            fields: the fields that it gets, and no others are read; None for all.

        Raises:
            OptionError: if there is no such field, or the predicate returns anything else.
            GdsloadError: see `__getitems__`.
        """
        kept = [np.zeros(0, np.int64)]
        for first, batch in self._open_reader().pieces(known_fields(self.schema, fields)):
            kept.append(first + np.flatnonzero(_mask(predicate(batch), batch)))
        return _subset(self, np.concatenate(kept))

    def sample_bytes(self, indices: Indices) -> NDArray[np.int64]:
        """The number of bytes that each of these samples takes in a shard, offsets included; shape ``[samples]``.

        Raises:
            GdsloadError: see `__getitems__`.
        """
        return self._open_reader().sizes(self._ids(indices))

    def _ids(self, indices: Indices) -> NDArray[np.int64]:
        """Sample ids from indices; it may be the array that was given."""
        length = len(self)
        known = isinstance(indices, np.ndarray) and indices.dtype == np.int64 and indices.ndim == 1
        ids: NDArray[np.int64] = np.asarray(indices) if known else whole_numbers(indices)
        low, high = (ids.min(), ids.max()) if ids.size else (0, -1)
        if low < -length or high >= length:
            bad = int(ids[(ids < -length) | (ids >= length)][0])
            raise SampleIndexError(f"sample {bad} does not exist: the dataset has {length}", file=self.path)
        return ids if low >= 0 else np.where(ids < 0, ids + length, ids)

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
            FormatError: if bytes are those that were written, but make no sense; likewise. Or if you may not read a
                shard, so that nothing is known of its samples.
            FileChangedError: if a shard was replaced by another file since the dataset was opened.
        """
        return verify_shards(self._catalog.sources, self._catalog.stored, deep=deep, progress=progress)

    def _open_reader(self, device: torch.device = CPU) -> SampleReader:
        """This process's reader for a device. After a fork, threads and locks of the parent's must not be used."""
        reader = self._readers.get(device)
        if reader is None or reader.owner != os.getpid():
            with self._opening.setdefault(os.getpid(), threading.RLock()):
                reader = self._readers.get(device)
                if reader is None or reader.owner != os.getpid():
                    reader = SampleReader(self._catalog, self.open_files, mapped=self.mmap, device=device)
                    Closer(self, reader.close)
                    self._readers[device] = reader
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
        return dataset_text(self)

    def _repr_html_(self) -> str:
        return dataset_html(self)


def _subset(dataset: ShardDataset, ids: NDArray[np.int64]) -> Subset[dict[str, Any]]:
    # As an array: a list of as many numbers takes four times the memory, and its elements are as quick to get.
    return Subset(dataset, cast("Sequence[int]", ids))


def _mask(given: object, batch: dict[str, Any]) -> NDArray[np.bool_]:
    """The mask that a predicate returned, as an array; OptionError if it is no boolean for each sample."""
    value = next(iter(batch.values()))
    samples = len(value[1]) - 1 if isinstance(value, tuple) else len(value)
    mask = given.detach().cpu().numpy() if isinstance(given, torch.Tensor) else given
    if isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (samples,):
        return mask
    found = f"{mask.dtype} of shape {mask.shape}" if isinstance(mask, np.ndarray) else f"a {type(given).__name__}"
    raise OptionError(
        f"the predicate returned {found} for a batch of {samples} samples",
        remedy="Return a boolean for each sample, as batch['label'] == 3 is: a tensor or an array [samples].",
    )
