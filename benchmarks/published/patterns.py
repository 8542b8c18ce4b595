"""The data of each pattern, the loaders that read them, and the comparison of their bytes with what was written."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gdsload
from benchmarks.clips import Clips
from benchmarks.contenders.torch_loader import RowBatches, as_is
from benchmarks.workloads import SEED
from gdsload.engine.gpu.plain_tensors import each_tensor

__all__ = ["PATTERNS", "Epochs", "Pattern", "files_of"]

_CHECKED = 8
"""Batches whose bytes are compared."""
_FLOATS, _INTS = 14, 26
_DLRM_BATCH, _UNET3D_BATCH, _WINDOWS_BATCH = 12_288, 7, 64
Epochs = Iterable[Any]
"""Batches on the device; to iterate again begins the next epoch."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One access pattern.

    Attributes:
        name: its key in the record.
        batch: samples of a batch.
        compute_s: seconds of computation a step; None: there is none.
        states: how the files are: ``"hot"``, ``"cold"`` or both.
        write: makes the files in a folder, for about so many bytes.
        check: raises RuntimeError if bytes of gdsload's batches differ from those written.
        loaders: the contenders: each opens the folder for a device, a state and a number of workers.
    """

    name: str
    batch: int
    compute_s: float | None
    states: tuple[str, ...]
    write: Callable[[Path, int], None]
    check: Callable[[Path, torch.device], None]
    loaders: Mapping[str, Callable[[Path, torch.device, str, int], Epochs]]


def files_of(folder: Path) -> list[str]:
    """All files of a contender."""
    return [str(path) for path in sorted(folder.rglob("*")) if path.is_file()]


class _OnDevice:
    """Batches of torch's loader, copied to the device out of pinned memory."""

    def __init__(self, loader: Any, device: torch.device) -> None:
        self._loader, self._device = loader, device

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield each_tensor(batch, lambda one: one.to(self._device, non_blocking=True))


def _torch(dataset: Any, batch: int | None, device: torch.device, workers: int, **options: Any) -> Epochs:
    options |= {"num_workers": workers, "persistent_workers": workers > 0, "pin_memory": device.type == "cuda"}
    return _OnDevice(torch.utils.data.DataLoader(dataset, batch, **options), device)


def _compare(found: torch.Tensor, wanted: np.ndarray[Any, Any], what: str) -> None:
    if found.cpu().numpy().tobytes() != wanted.tobytes():
        raise RuntimeError(f"{what} has other bytes than were written")


# DLRM: many narrow columns, packed into rows.


def _write_rows(folder: Path, nbytes: int) -> None:
    """Columns `f0` to `f13`, float32, and `i0` to `i25`, int32, as shards, one array of rows, and Parquet."""
    rows = np.random.default_rng(SEED).integers(0, 2**20, (nbytes // 160, _FLOATS + _INTS), np.int32)
    columns = {f"f{n}": rows[:, n].view(np.float32) for n in range(_FLOATS)}
    columns |= {f"i{n}": rows[:, _FLOATS + n] for n in range(_INTS)}
    with gdsload.ShardWriter(folder / "gdsload") as writer:
        for low in range(0, len(rows), 2**18):
            writer.write_batch({name: column[low : low + 2**18] for name, column in columns.items()})
    (folder / "torch").mkdir()
    np.save(folder / "torch/rows.npy", rows)
    if importlib.util.find_spec("pyarrow"):
        (folder / "torch-parquet").mkdir()
        table = import_module("pyarrow").table({name: np.ascontiguousarray(each) for name, each in columns.items()})
        path = folder / "torch-parquet/rows.parquet"
        import_module("pyarrow.parquet").write_table(table, path, row_group_size=2**18, use_dictionary=False)


def _check_rows(folder: Path, device: torch.device) -> None:
    rows = np.load(folder / "torch/rows.npy", mmap_mode="r")
    with gdsload.DataLoader(folder / "gdsload", _DLRM_BATCH, "full", device=device, with_index=True) as loader:
        for batch in itertools.islice(loader, _CHECKED):
            wanted = rows[batch["index"].numpy()]
            for n in range(_FLOATS + _INTS):
                name = f"f{n}" if n < _FLOATS else f"i{n - _FLOATS}"
                _compare(batch[name], np.ascontiguousarray(wanted[:, n]), name)


class _Groups(torch.utils.data.IterableDataset[Any]):
    """Batches out of row groups of a Parquet file, which workers share out; rows keep their order."""

    def __init__(self, path: Path, batch: int) -> None:
        self._path, self._batch = path, batch

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        file = import_module("pyarrow.parquet").ParquetFile(self._path)
        for group in range(info.id if info else 0, file.num_row_groups, info.num_workers if info else 1):
            table = file.read_row_group(group, use_threads=False)
            columns = {name: table[name].to_numpy() for name in table.column_names}
            for low in range(0, table.num_rows, self._batch):
                yield {name: torch.tensor(column[low : low + self._batch]) for name, column in columns.items()}


def _rows_by_gdsload(folder: Path, device: torch.device, state: str, _: int) -> Epochs:
    return gdsload.DataLoader(folder, _DLRM_BATCH, "block" if state == "cold" else "full", device=device)


def _rows_by_torch(folder: Path, device: torch.device, _: str, workers: int) -> Epochs:
    rows = RowBatches(str(folder / "rows.npy"))
    return _torch(rows, _DLRM_BATCH, device, workers, shuffle=True, collate_fn=as_is)


def _rows_by_parquet(folder: Path, device: torch.device, _: str, workers: int) -> Epochs:
    return _torch(_Groups(folder / "rows.parquet", _DLRM_BATCH), None, device, workers)


# unet3d: large samples of many sizes, one file each.


def _write_volumes(folder: Path, nbytes: int) -> None:
    """Random bytes, 146.6 MB a sample, 68 MB more or less: as shards, and one .npz a sample."""
    random = np.random.default_rng(SEED)
    count = max(round(nbytes / 146.6e6), 7)
    share = min(nbytes / (count * 146.6e6), 1)
    (folder / "torch").mkdir()
    with gdsload.ShardWriter(folder / "gdsload", {"volume": gdsload.Field("uint8", (None,))}) as writer:
        for number in range(count):
            size = int(share * np.clip(random.normal(146.6e6, 68e6), 10e6, 300e6))
            volume = np.frombuffer(random.bytes(size), np.uint8)
            writer.write({"volume": volume})
            np.savez(folder / f"torch/{number:05}.npz", x=volume)


class _Files(torch.utils.data.Dataset[Any]):
    """A .npz file a sample, as the benchmark's own reader takes it."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(folder.glob("*.npz"))

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.load(self._paths[index])["x"])


def _check_volumes(folder: Path, device: torch.device) -> None:
    files = _Files(folder / "torch")
    with _volumes(folder / "gdsload", device, with_index=True) as loader:
        for batch in itertools.islice(loader, 2):
            values, offsets = batch["volume"]
            for place, index in enumerate(batch["index"].tolist()):
                volume = values[offsets[place] : offsets[place + 1]]
                _compare(volume, files[index].numpy(), f"volume {index}")


def _volumes(folder: Path, device: torch.device, **options: Any) -> gdsload.DataLoader:
    return gdsload.DataLoader(folder, _UNET3D_BATCH, "full", device=device, ragged="offsets", **options)


def _volumes_by_gdsload(folder: Path, device: torch.device, _state: str, _: int) -> Epochs:
    return _volumes(folder, device)


def _volumes_by_torch(folder: Path, device: torch.device, _: str, workers: int) -> Epochs:
    return _torch(_Files(folder), _UNET3D_BATCH, device, workers, shuffle=True, collate_fn=as_is)


# Windows: every fifth frame of twenty, and all actions.


def _write_frames(folder: Path, nbytes: int) -> None:
    random, count = np.random.default_rng(SEED), max(nbytes // (224 * 224 * 3), 40)
    fields = {"pixels": gdsload.Field("uint8", (224, 224, 3)), "action": gdsload.Field("float32", (2,))}
    (folder / "torch").mkdir()
    with (
        gdsload.ShardWriter(folder / "gdsload", fields) as writer,
        import_module("h5py").File(folder / "torch/frames.h5", "w") as file,
    ):
        pixels = file.create_dataset("pixels", (count, 224, 224, 3), np.uint8, chunks=(1, 224, 224, 3))
        actions = file.create_dataset("action", (count, 2), np.float32)
        for low in range(0, count, 256):
            high = min(low + 256, count)
            pixels[low:high] = random.integers(0, 256, (high - low, 224, 224, 3), np.uint8)
            actions[low:high] = random.standard_normal((high - low, 2), np.float32)
            writer.write_batch({"pixels": pixels[low:high], "action": actions[low:high]})


def _windows(folder: Path) -> gdsload.Windows:
    return gdsload.Windows(folder, offsets={"pixels": range(0, 20, 5), "action": range(20)})


def _check_windows(folder: Path, device: torch.device) -> None:
    windows = _windows(folder / "gdsload")
    clips = Clips(str(folder / "torch/frames.h5"), len(windows))
    with gdsload.DataLoader(windows, _WINDOWS_BATCH, "full", device=device, with_index=True) as loader:
        for batch in itertools.islice(loader, 2):
            for place, index in enumerate(batch["index"].tolist()):
                for name, wanted in clips[index].items():
                    _compare(batch[name][place], wanted, f"{name} of window {index}")


def _windows_by_gdsload(folder: Path, device: torch.device, _state: str, _: int) -> Epochs:
    return gdsload.DataLoader(_windows(folder), _WINDOWS_BATCH, "full", device=device)


def _windows_by_torch(folder: Path, device: torch.device, _: str, workers: int) -> Epochs:
    count = len(_windows(folder.parent / "gdsload"))
    return _torch(Clips(str(folder / "frames.h5"), count), _WINDOWS_BATCH, device, workers, shuffle=True)


_ROWS = {"gdsload": _rows_by_gdsload, "torch": _rows_by_torch, "torch-parquet": _rows_by_parquet}
_VOLUMES = {"gdsload": _volumes_by_gdsload, "torch": _volumes_by_torch}
_WINDOWS = {"gdsload": _windows_by_gdsload, "torch": _windows_by_torch}
PATTERNS = (
    Pattern("dlrm", _DLRM_BATCH, 0.375e-3, ("hot", "cold"), _write_rows, _check_rows, _ROWS),
    Pattern("unet3d", _UNET3D_BATCH, 0.162, ("cold",), _write_volumes, _check_volumes, _VOLUMES),
    Pattern("windows", _WINDOWS_BATCH, None, ("hot", "cold"), _write_frames, _check_windows, _WINDOWS),
)
