"""Tensors of any safetensors files, as `safetensors.safe_open` and `safetensors.torch.load_file` give them.

Bytes travel as those of samples do: a backend reads extents, here few and long ones, and they are copied into tensors
that are the caller's own.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import torch

from gdsload.backends.names import BACKEND_CHOICES, BackendChoice
from gdsload.errors import FormatError, LoaderClosedError, OptionError, Problem
from gdsload.loader.options import resolve_device
from gdsload.loader.tensor_reader import Block, TensorReader, block_of
from gdsload.shards.files import Files, open_regular
from gdsload.shards.format.header import Header, TensorEntry
from gdsload.shards.identity import ShardSource, identity_of
from gdsload.shards.opening import load_header
from gdsload.shards.status import status_of
from gdsload.shards.values import no_inference
from gdsload.system.paths import absolute, listed_paths
from gdsload.system.threads import Closer

__all__ = ["TensorFiles", "TensorSlice", "load_file", "safe_open"]

Path = str | os.PathLike[str]


def load_file(
    filename: Path, device: str | torch.device | int | None = "cpu", *, backend: BackendChoice = "auto"
) -> dict[str, torch.Tensor]:
    """All tensors of a safetensors file, as `safetensors.torch.load_file` gives them.

    Args:
        filename: the file.
        device: where the tensors go; None for the current accelerator, or the CPU if there is none.
        backend: how the bytes travel, as for `gdsload.DataLoader`.

    Returns:
        Name to tensor, in the order of the file. Each has its own memory, and needs the file no more.

    Raises:
        DatasetNotFoundError: if there is no such file.
        FormatError: if it is no valid safetensors file.
        ReadError: if it cannot be read, or changes meanwhile.
        BackendUnavailableError: if the backend that was asked for cannot be used.
        OptionError: if an argument cannot be used.
    """
    with safe_open(filename, "pt", device, backend=backend) as file:
        return file.get_tensors()


def safe_open(
    filename: Path | Sequence[Path],
    framework: str = "pt",
    device: str | torch.device | int | None = "cpu",
    *,
    backend: BackendChoice = "auto",
) -> TensorFiles:
    """Open safetensors files, to read their tensors one by one or in part, as `safetensors.safe_open` does.

    Args:
        filename: the file, or several whose tensors have different names, such as those of one model.
        framework: ``"pt"``, ``"torch"`` or ``"pytorch"``: tensors are torch's.
        device: where tensors go; None for the current accelerator, or the CPU if there is none.
        backend: how the bytes travel, as for `gdsload.DataLoader`.

    Raises:
        GdsloadError: see `load_file`.
    """
    if framework not in ("pt", "torch", "pytorch"):
        raise OptionError(f"framework is {framework!r}", remedy='Pass "pt": tensors are torch\'s.')
    if isinstance(filename, bytes) or not isinstance(filename, str | os.PathLike | Iterable):
        raise OptionError(f"filename is {filename!r:.200}, no path", remedy="Pass a path, or a list of several.")
    names = listed_paths("filename", [filename] if isinstance(filename, str | os.PathLike) else filename)
    if backend not in BACKEND_CHOICES:
        raise OptionError(f"backend is {backend!r}", remedy=f"Supported are {', '.join(map(repr, BACKEND_CHOICES))}.")
    if not names:
        raise OptionError("there are no files to open", remedy="Pass a path, or several.")
    return TensorFiles([absolute(name) for name in names], resolve_device(device), backend)


class TensorFiles:
    """Open safetensors files; made by `safe_open`, and a context manager."""

    def __init__(self, names: Sequence[str], device: torch.device, backend: BackendChoice) -> None:
        self._names, self._entries = tuple(names), dict[str, tuple[int, TensorEntry]]()
        self._metadata: dict[str, str] = {}
        sources = []
        for file, name in enumerate(names):
            source, header = _look(name)
            sources.append(source)
            if twice := sorted(header.tensors.keys() & self._entries.keys()):
                problems = [Problem(f"{names[self._entries[one][0]]} has it, too", name, field=one) for one in twice]
                raise FormatError("files that are opened together have tensors of one name", problems=problems)
            self._entries.update((one, (file, entry)) for one, entry in header.tensors.items())
            self._metadata.update(header.metadata)
        self._sources, self._device, self._backend = sources, device, backend
        self._reader = self._new_reader()

    def _new_reader(self) -> TensorReader:
        reader = TensorReader(Files(self._sources, mapped=True), self._device, self._backend)
        Closer(self, reader.close)
        return reader

    def _open_reader(self) -> TensorReader:
        """This process's reader, unless the files were closed. After a fork, locks of the parent's must not be used."""
        if self._reader.owner != os.getpid():
            if self._reader.closed:
                raise LoaderClosedError("the file was closed")
            self._reader = self._new_reader()
        return self._reader

    def keys(self) -> list[str]:
        """The tensors' names, sorted."""
        return sorted(self._entries)

    def offset_keys(self) -> list[str]:
        """The tensors' names, in the order in which they are in the files."""
        return list(self._entries)

    def metadata(self) -> dict[str, str] | None:
        """The text pairs of the files; None if there are none."""
        return dict(self._metadata) or None

    def get_tensor(self, name: str) -> torch.Tensor:
        """A tensor.

        Raises:
            OptionError: if there is none of this name.
            ReadError: if it cannot be read, or the file was changed.
            LoaderClosedError: after `close`.
        """
        return self.get_slice(name)[...]

    def get_tensors(self) -> dict[str, torch.Tensor]:
        """All tensors, in the order of the files, read with few calls. Errors are those of `get_tensor`."""
        blocks = [
            block_of(file, entry, [(0, size) for size in entry.shape], range(len(entry.shape)))
            for file, entry in self._entries.values()
        ]
        return dict(zip(self._entries, self._open_reader().read(blocks), strict=True))

    def get_slice(self, name: str) -> TensorSlice:
        """A tensor of which a part is to be read.

        Raises:
            OptionError: if there is none of this name.
        """
        if not isinstance(name, str) or name not in self._entries:
            near = difflib.get_close_matches(str(name), self._entries, 3)
            hint = f"Similar names are {', '.join(map(repr, near))}." if near else "`keys()` has the names."
            raise OptionError(f"there is no tensor {name!r} in {', '.join(self._names)}", remedy=hint)
        return TensorSlice(self._read, *self._entries[name])

    def _read(self, block: Block) -> torch.Tensor:
        return self._open_reader().read([block])[0]

    def close(self) -> None:
        """Close the files; tensors stay. May be called twice."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _look(name: str) -> tuple[ShardSource, Header]:
    """Which file there is, and its header."""
    fd = open_regular(name)
    try:
        return ShardSource(name, identity=identity_of(status_of(fd, name))), load_header(fd, name)
    finally:
        os.close(fd)


class TensorSlice:
    """A tensor in a file, of which ``[...]`` reads a part; made by `TensorFiles.get_slice`."""

    def __init__(self, read: Callable[[Block], torch.Tensor], file: int, entry: TensorEntry) -> None:
        self._read, self._file, self._entry = read, file, entry

    def get_shape(self) -> list[int]:
        """The tensor's shape."""
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        """The tensor's element type, as the file calls it: ``"F32"``, ``"BF16"``, ``"BOOL"``."""
        return self._entry.dtype.code

    def __getitem__(self, index: Any) -> torch.Tensor:
        """A part of the tensor, as torch's indexing gives it, in its own memory.

        Whole numbers and slices are not read more than is needed of, up to the first of another kind.

        Raises:
            IndexError: if the tensor has no such part.
            ReadError: if it cannot be read, or the file was changed.
            LoaderClosedError: after the file was closed.
        """
        wanted = index if isinstance(index, tuple) else (index,)
        bounds, kept, rest = _bounds(wanted, self._entry.shape)
        found = self._read(block_of(self._file, self._entry, bounds, kept))
        with no_inference():
            return found[rest].clone(memory_format=torch.contiguous_format) if rest else found


def _bounds(index: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[list[tuple[int, int]], list[int], tuple[Any, ...]]:
    """What of each dimension is to be read; the dimensions that remain; the index of what is wanted in that, if any."""
    bounds: list[tuple[int, int]] = []
    kept: list[int] = []
    rest: list[slice] = []
    for axis, (one, size) in enumerate(zip(index, shape, strict=False)):
        if type(one) is int and -size <= one < size:
            bounds.append((one % size, one % size + 1))
        elif isinstance(one, slice) and (one.step is None or (type(one.step) is int and one.step > 0)):
            found = range(size)[one]
            bounds.append((found[0], found[-1] + 1) if found else (0, 0))
            rest.append(slice(None, None, one.step))
            kept.append(axis)
        else:
            break
    read = len(bounds)
    after = index[read:]
    bounds += [(0, size) for size in shape[read:]]
    kept += range(read, len(shape))
    if all(one.step in (None, 1) for one in rest) and (not after or (len(after) == 1 and after[0] is Ellipsis)):
        return bounds, kept, ()
    return bounds, kept, (*rest, *after)
