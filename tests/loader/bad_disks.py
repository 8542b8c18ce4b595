"""File systems that fail, in a mount namespace of this process's own: run as a program, by test_bad_disks.py.

One is a tmpfs without room for a shard's holes. The other is a FUSE file system that has the files of a folder as they
are, but for one page that cannot be read: for whoever has it mapped, too.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import os
import signal
import struct
import sys

import numpy as np

import gdsload

NO_MOUNT = 77
"""Exit code where such file systems cannot be mounted."""

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_REQUEST, _ATTR_VALID = struct.Struct("<IIQQIIII"), 3600
_LOOKUP, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE, _FLUSH = 1, 3, 14, 15, 17, 18, 25
_INIT, _OPENDIR, _READDIR, _RELEASEDIR = 26, 27, 28, 29
_FORGET, _BATCH_FORGET, _INTERRUPT = 2, 42, 36
_FIRST = 16  # number of the first file; the folder is 1


def say(line):
    """Tell the test something."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def mount(kind, place, options):
    """Mount a file system, or end this process with `NO_MOUNT`."""
    os.makedirs(place, exist_ok=True)
    if _libc.mount(kind.encode(), place.encode(), kind.encode(), 0, options.encode()):
        say(f"{kind} cannot be mounted: {os.strerror(ctypes.get_errno())}")
        sys.exit(NO_MOUNT)


class BadFiles:
    """Serves a folder's files through FUSE; see include/uapi/linux/fuse.h for what is sent.

    Args:
        folder: where the files are.
        place: where to mount them.
        bad: for a file's name the byte ranges that cannot be read.
    """

    def __init__(self, folder, place, bad):
        try:
            self._device = os.open("/dev/fuse", os.O_RDWR)
        except OSError as error:
            say(f"/dev/fuse cannot be opened: {error.strerror}")
            sys.exit(NO_MOUNT)
        self._names = sorted(os.listdir(folder))
        self._files = [os.open(os.path.join(folder, name), os.O_RDONLY) for name in self._names]
        self._bad = [bad.get(name, []) for name in self._names]
        mount("fuse", place, f"fd={self._device},rootmode=40000,user_id=0,group_id=0")
        if not os.fork():  # a process of its own: who waits for a page may hold this one's interpreter lock
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            try:
                self._serve()
            finally:
                os._exit(1)
        # Or this process, which closes its files while it ends, would wait for an answer that nobody gives.
        os.close(self._device)

    def _attr(self, node):
        mode, size = 0o40755, 0
        if node >= _FIRST:
            mode, size = 0o100644, os.fstat(self._files[node - _FIRST]).st_size
        return struct.pack("<6Q3I7I", node, size, -(-size // 512), 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def _answer(self, code, node, body):
        """What is answered; an OSError for an error."""
        if code == _INIT:
            return struct.pack("<4I2H2I2H8I", 7, 31, 2**17, 0, 12, 10, 2**20, 1, 256, 0, *[0] * 8)
        if code == _LOOKUP:
            name = body.rstrip(b"\0").decode()
            if name not in self._names:
                raise OSError(errno.ENOENT, name)
            found = self._names.index(name) + _FIRST
            return struct.pack("<4Q2I", found, 0, _ATTR_VALID, _ATTR_VALID, 0, 0) + self._attr(found)
        if code == _GETATTR:
            return struct.pack("<Q2I", _ATTR_VALID, 0, 0) + self._attr(node)
        if code in (_OPEN, _OPENDIR):
            return struct.pack("<Q2I", 0, 2, 0)  # FOPEN_KEEP_CACHE
        if code == _READ:
            _, offset, nbytes = struct.unpack_from("<2QI", body)
            if any(offset < high and low < offset + nbytes for low, high in self._bad[node - _FIRST]):
                raise OSError(errno.EIO, "a bad sector")
            return os.pread(self._files[node - _FIRST], nbytes, offset)
        if code == _STATFS:
            return struct.pack("<5Q4I24x", 2**20, 2**20, 2**20, 1, 1, 4096, 255, 4096, 0)
        if code == _READDIR:
            return self._entries(struct.unpack_from("<2Q", body)[1])
        if code in (_RELEASE, _FLUSH, _RELEASEDIR):
            return b""
        raise OSError(errno.ENOSYS, str(code))

    def _entries(self, start):
        """The folder's entries from one on; they are few."""
        found = b""
        for number, name in enumerate(self._names[start:], start):
            entry = struct.pack("<2Q2I", number + _FIRST, number + 1, len(name), 8) + name.encode()
            found += entry.ljust(-(-len(entry) // 8) * 8, b"\0")
        return found

    def _serve(self):
        while True:
            request = os.read(self._device, 2**21)
            _, code, unique, node, *_ = _REQUEST.unpack_from(request)
            if code in (_FORGET, _BATCH_FORGET, _INTERRUPT):
                continue
            status, answer = 0, b""
            try:
                answer = self._answer(code, node, request[_REQUEST.size :])
            except OSError as error:
                status = -error.errno
            os.write(self._device, struct.pack("<IiQ", 16 + len(answer), status, unique) + answer)


def read_all(dataset, **options):
    """One epoch, or the error that ends it."""
    try:
        with gdsload.DataLoader(dataset, batch_size=20, device="cpu", **options) as loader:
            return sum(len(next(iter(batch.values()))) for batch in loader)
    except gdsload.GdsloadError as error:
        return error


def bad_sector(place):
    """A page in the middle of rows of one page each."""
    with gdsload.ShardWriter(f"{place}/good") as writer:
        writer.write_batch({"x": np.arange(100 * 4096, dtype=np.int64).astype(np.uint8).reshape(100, 4096)})
    name = "shard-00000.safetensors"
    page = os.path.getsize(f"{place}/good/{name}") // 2 // 4096 * 4096
    BadFiles(f"{place}/good", f"{place}/bad", {name: [(page, page + 4096)]})
    dataset = gdsload.ShardDataset(f"{place}/bad")
    say(f"epoch: {read_all(dataset)}")
    say(f"unmapped: {read_all(dataset, mmap=False)}")
    good, failed = gdsload.ShardDataset(f"{place}/good"), []
    for sample in range(100):
        try:
            assert dataset[sample]["x"].equal(good[sample]["x"])
        except gdsload.ReadError:
            failed.append(sample)
    say(f"samples that fail: {len(failed)}")


def bad_offsets(place):
    """A page of a ragged field's offsets."""
    with gdsload.ShardWriter(f"{place}/good", {"t": gdsload.Field("int32", (None,))}) as writer:
        writer.write_batch({"t": [np.arange(number % 5, dtype=np.int32) for number in range(2000)]})
    name = "shard-00000.safetensors"
    with open(f"{place}/good/{name}", "rb") as file:
        begin = file.read().index(np.array([0, 0, 1, 3, 6, 10], np.int64).tobytes()) // 4096 * 4096 + 4096
    BadFiles(f"{place}/good", f"{place}/bad", {name: [(begin, begin + 4096)]})
    dataset = gdsload.ShardDataset(f"{place}/bad")
    say(f"epoch: {read_all(dataset, shuffle='full')}")


def full(place):
    """A shard that is nearly all hole: to map a page of it, the file system needs one."""
    mount("tmpfs", f"{place}/full", "size=1m")
    with gdsload.ShardWriter(f"{place}/good") as writer:
        writer.write_batch({"x": np.zeros((1000, 4096), np.uint8)})
    (shard,) = (name for name in os.listdir(f"{place}/good") if name.endswith(".safetensors"))
    with open(f"{place}/good/{shard}", "rb") as source, open(f"{place}/full/{shard}", "wb") as target:
        target.write(source.read(8192))
        target.truncate(os.path.getsize(source.name))
    dataset = gdsload.ShardDataset(f"{place}/full/{shard}")
    say(f"epoch: {read_all(dataset)}")
    say(f"unmapped: {read_all(dataset, mmap=False)}")


def main(place):
    """Each file system in a new process, forked off one that has imported torch."""
    importlib.import_module("gdsload.loader.loader")
    for name, use in {"sector": bad_sector, "offsets": bad_offsets, "full": full}.items():
        say(f"[{name}]")
        if not (child := os.fork()):
            os.mkdir(f"{place}/{name}")
            use(f"{place}/{name}")
            os._exit(0)  # taking torch down takes longer
        say(f"ended: {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")


if __name__ == "__main__":
    main(sys.argv[1])
