"""kvikio by hand, and gdsload's loader as its user calls it."""

from __future__ import annotations

from typing import Any

import torch

import gdsload
from benchmarks.gpu.data import ROW_BYTES, Data
from benchmarks.gpu.loads import Load, compare
from gdsload.backends.gds.engines import path_counts

__all__ = ["KvikioAsync", "KvikioRead", "Loader"]


class KvikioRead(Load):
    """kvikio by hand: one `pread` a shard into a buffer, the negative control of overlap.

    Args:
        data: the rows.
        device: the GPU.
        compat: whether in kvikio's own compat mode; else through cuFile.
    """

    def __init__(self, data: Data, device: torch.device, compat: bool) -> None:
        super().__init__(data, device)
        self._compat = compat
        mode = "compat" if compat else "cufile"
        self.name, self.title = f"kvikio-{mode}", f"kvikio pread by hand, 8 threads of 4 MiB, {mode} mode"

    def open(self) -> None:
        """See `Load.open`."""
        import kvikio

        self._kvikio: Any = kvikio
        size = max(path.stat().st_size for path in self.data.paths)
        self._buffer = torch.empty(size, dtype=torch.uint8, device=self.device)

    def _set(self) -> None:
        from kvikio import defaults

        mode = self._kvikio.CompatMode
        defaults.set({"num_threads": 8, "task_size": 4 * 2**20, "compat_mode": mode.ON if self._compat else mode.OFF})

    def run(self) -> int:
        """See `Load.run`."""
        self._set()
        total = 0
        for path in self.data.paths[: max(round(len(self.data.paths) * self.share), 1)]:
            with self._kvikio.CuFile(str(path), "r") as file:
                total += self.read(file, path.stat().st_size)
        return total

    def read(self, file: Any, size: int) -> int:
        """Read a file into the buffer."""
        return int(file.pread(self._buffer, size, 0).get())

    def verify(self) -> int:
        """See `Load.verify`."""
        self._set()
        position, flat, begin = 0, self.data.reference.view(-1), self.data.begins().tolist()
        for number, path in enumerate(self.data.paths):
            with self._kvikio.CuFile(str(path), "r") as file:
                self.read(file, path.stat().st_size)
            torch.cuda.synchronize()
            nbytes = int(self.data.dataset.counts[number]) * ROW_BYTES
            found = self._buffer[begin[number] : begin[number] + nbytes]
            compare(found, flat[position : position + nbytes], f"{self.name}, {path.name}")
            position += nbytes
        return position

    def paths(self) -> dict[str, int]:
        """See `Load.paths`: reads, as bytes are not counted."""
        return {} if self._compat else {f"{path} reads": count for path, count in path_counts().items() if count}


class KvikioAsync(KvikioRead):
    """kvikio by hand: `raw_read_async` on its own stream."""

    def __init__(self, data: Data, device: torch.device) -> None:
        super().__init__(data, device, compat=False)
        self.name, self.title = "kvikio-async", "kvikio raw_read_async by hand, cufile mode, a stream of its own"

    def open(self) -> None:
        """See `Load.open`."""
        super().open()
        self._stream = torch.cuda.Stream(self.device)

    def read(self, file: Any, size: int) -> int:
        """Read a file into the buffer, 16 MiB at a time, all queued at once."""
        step = 16 * 2**20
        futures = [
            file.raw_read_async(self._buffer[low : low + step], self._stream.cuda_stream, min(step, size - low), low, 0)
            for low in range(0, size, step)
        ]
        return sum(int(future.check_bytes_done()) for future in futures)


class Loader(Load):
    """The loader, as its user calls it; each batch is dropped when the next one comes.

    Args:
        data: the rows.
        device: the GPU.
        backend: the backend's name.
        shuffle: the order.
    """

    batch_size = 2048

    def __init__(self, data: Data, device: torch.device, backend: str, shuffle: str | bool) -> None:
        super().__init__(data, device)
        self._backend: Any = backend
        self._shuffle = shuffle
        order = "full" if shuffle else "in-order"
        self.name, self.title = f"loader-{backend}-{order}", f"DataLoader, batches of 2048, backend {backend}, {order}"

    def _make(self, *, with_index: bool) -> gdsload.DataLoader:
        return gdsload.DataLoader(
            self.data.folder, self.batch_size, self._shuffle, device=self.device, backend=self._backend,
            with_index=with_index,
        )  # fmt: skip

    def open(self) -> None:
        """See `Load.open`."""
        self._loader = self._make(with_index=False)
        for _ in self._loader:  # registers shards, as the first epoch does
            pass

    def run(self) -> int:
        """See `Load.run`."""
        total = 0
        for batch in self._loader:
            total += batch["x"].nbytes
        torch.cuda.synchronize(self.device)
        return total

    def verify(self) -> int:
        """See `Load.verify`."""
        total = 0
        seen: list[torch.Tensor] = []
        with self._make(with_index=True) as loader:
            for _ in range(2):  # the first epoch may take another way
                seen.clear()
                total = 0
                for batch in loader:
                    compare(batch["x"], self.data.reference[batch["index"].to(self.device)], self.name)
                    seen.append(batch["index"])
                    total += batch["x"].nbytes
        if not torch.equal(torch.cat(seen).sort().values, torch.arange(len(self.data.reference))):
            raise RuntimeError(f"samples are missing or come twice: {self.name}")
        return total

    def paths(self) -> dict[str, int]:
        """See `Load.paths`."""
        return self._loader.backend.bytes_by_path

    def close(self) -> None:
        """See `Load.close`."""
        self._loader.close()
