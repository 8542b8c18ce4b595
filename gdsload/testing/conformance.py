"""Conformance tests for backends.

    class TestMine(BackendTests):
        @pytest.fixture
        def open_backend(self):
            return MyBackend                        # called with a `Files`

        def read_memory(self, address, nbytes):     # only if bytes land elsewhere than in host memory
            return my_copy_to_host(address, nbytes)

The reference is a plain read of the whole file. The suite opens and closes its backends itself.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from gdsload.backends.base import Backend, PendingRead
from gdsload.errors import FileChangedError, FormatError, GdsloadError, ReadError
from gdsload.loader.dataset import ShardDataset
from gdsload.shards.files import Files
from gdsload.shards.format.schema import Field
from gdsload.shards.local_files import LocalFiles
from gdsload.shards.reads import Extents
from gdsload.shards.writer import ShardWriter

OpenBackend = Callable[[Files], Backend]

_PAGE = 4096
_LATER_S = 0.03
"""Longer than the interval in which a file's identity is not looked up again."""
_SOON_S = 2.0
"""The same, where a look took long, which makes the next interval longer."""


class BackendTests:
    """Tests of one backend; pytest collects a subclass whose name begins with "Test"."""

    mapped = False
    """True if the files that the backend is opened on are mapped into memory."""
    may_be_in_place = False
    """True if the backend reads some extents in place and others not."""

    @pytest.fixture
    def open_backend(self) -> OpenBackend:
        """The function that opens the backend on a table of files; for a subclass to define."""
        raise NotImplementedError("define a fixture open_backend that returns a function from Files to the backend")

    def read_memory(self, address: int, nbytes: int) -> bytes:
        """Copy landed bytes to the host; for a subclass to define if they are not in host memory."""
        return ctypes.string_at(address, nbytes)

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A dataset of several shards of different lengths, with random bytes."""
        random = np.random.default_rng(5)
        with ShardWriter(tmp_path / "shards", {"x": Field("uint8", (None,))}, shard_bytes="1MiB") as writer:
            for nbytes in (100, 700_001, 900_000, 3_000_017, 5, 0, 400_000):
                writer.write({"x": random.integers(0, 256, nbytes, dtype=np.uint8)})
        return tmp_path / "shards"

    @pytest.fixture
    def files(self, folder: Path) -> Iterator[Files]:
        """The table of files that the backend is opened on."""
        files = LocalFiles(ShardDataset(folder).sources, mapped=self.mapped)
        yield files
        files.close()

    @pytest.fixture
    def truth(self, files: Files) -> list[bytes]:
        """The bytes of each file."""
        return [Path(source.path).read_bytes() for source in files.sources]

    @pytest.fixture
    def backend(self, open_backend: OpenBackend, files: Files) -> Iterator[Backend]:
        """The backend, opened."""
        backend = open_backend(files)
        yield backend
        backend.close()

    def landed(self, landing: PendingRead, wanted: Extents) -> list[bytes]:
        """The bytes of each extent, after they have landed."""
        landing.completion.wait()
        assert landing.completion.landed
        assert landing.addresses.shape == (len(wanted),)
        pairs = zip(landing.addresses.tolist(), wanted.nbytes.tolist(), strict=True)
        return [self.read_memory(address, nbytes) if nbytes else b"" for address, nbytes in pairs]

    def expect(self, backend: Backend, truth: list[bytes], wanted: Extents) -> None:
        """Read extents, compare them, and release them."""
        landing = backend.read(wanted)
        assert self.landed(landing, wanted) == plain(truth, wanted)
        if not self.may_be_in_place:  # else the arena holds those that are not, whichever they are
            longest = int(wanted.nbytes.max(initial=0))
            assert landing.nbytes == 0 if backend.in_place else landing.nbytes >= longest
        landing.count()
        landing.release()

    def test_bytes_for_the_host(self, backend: Backend, truth: list[bytes], files: Files) -> None:
        """They are in a mapping of their file, or where they would be without that wish."""
        wanted = random_extents(np.random.default_rng(7), truth, 100, 5000)
        landing = backend.read(wanted, "host")
        landing.completion.wait()
        mapped = files.in_mappings(landing.addresses)
        for address, nbytes, here, bytes_ in zip(
            landing.addresses.tolist(), wanted.nbytes.tolist(), mapped, plain(truth, wanted), strict=True
        ):
            if nbytes:
                assert (ctypes.string_at(address, nbytes) if here else self.read_memory(address, nbytes)) == bytes_
        before = sum(backend.bytes_by_path().values())
        landing.count()
        assert before <= sum(backend.bytes_by_path().values()) <= before + wanted.total_bytes
        landing.release()

    @pytest.mark.parametrize("seed", range(5))
    def test_random_extents(self, backend: Backend, truth: list[bytes], seed: int) -> None:
        """Extents anywhere, in any order, and as many small ones as of small samples."""
        random = np.random.default_rng(seed)
        longest = [1, 24, 600, 5000, 300_000][seed]
        self.expect(backend, truth, random_extents(random, truth, 5000 if seed == 1 else 200, longest))

    @pytest.mark.parametrize("nbytes", [1, 7, 8, 511, 512, 513, _PAGE - 1, _PAGE, _PAGE + 1])
    def test_every_alignment_of_begin_and_end(self, backend: Backend, truth: list[bytes], nbytes: int) -> None:
        """Around the edges of words, sectors and pages."""
        edges = [0, 1, 2, 4, 8, 64, 511, 512, 513]
        offsets = [
            base + edge for base in (0, _PAGE, 9 * _PAGE) for edge in (*edges, *(_PAGE - edge for edge in edges))
        ]
        self.expect(backend, truth, extents((1, offset, nbytes) for offset in offsets))

    def test_ends_of_files(self, backend: Backend, truth: list[bytes]) -> None:
        """The last bytes of each file."""
        lengths = (1, 8, 100, _PAGE, _PAGE + 1, 65_537)
        ends = [
            (file, len(data) - nbytes, nbytes)
            for file, data in enumerate(truth)
            for nbytes in lengths
            if nbytes <= len(data)
        ]
        self.expect(backend, truth, extents(ends))

    def test_whole_files(self, backend: Backend, truth: list[bytes]) -> None:
        """All of all files, headers included."""
        self.expect(backend, truth, extents((file, 0, len(data)) for file, data in enumerate(truth)))

    def test_repeats_and_overlaps(self, backend: Backend, truth: list[bytes]) -> None:
        """Each extent gets its bytes, also where others want them, too."""
        same = [(1, 5000, 9000)] * 4
        overlapping = [(1, 5000 + 700 * step, 2500) for step in range(20)] + [(1, 4000, 30_000), (1, 6000, 1)]
        self.expect(backend, truth, extents(same + overlapping[::-1]))

    def test_empty_extents(self, backend: Backend, truth: list[bytes]) -> None:
        """Alone, among others, and at the end of a file."""
        self.expect(backend, truth, extents([]))
        self.expect(backend, truth, extents([(0, 4096, 0)]))
        end = len(truth[1])
        self.expect(backend, truth, extents([(1, end, 0), (0, 0, 0), (1, 17, 3), (1, 17, 0), (0, 5, 1), (1, end, 0)]))

    def test_a_completion_can_be_waited_for_again_and_from_other_threads(
        self, backend: Backend, truth: list[bytes]
    ) -> None:
        """As when several groups of batches share a landing."""
        wanted = extents([(1, 100, 500_000), (2, 0, 100_000)])
        landing = backend.read(wanted)
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda _: self.landed(landing, wanted), range(8)))
        assert found == [plain(truth, wanted)] * 8
        landing.release()

    def test_many_threads_at_once(self, backend: Backend, truth: list[bytes]) -> None:
        """Landings do not mix."""

        def work(seed: int) -> None:
            random = np.random.default_rng(seed)
            for _ in range(8):
                self.expect(backend, truth, random_extents(random, truth, 60, 20_000))

        with ThreadPoolExecutor(8) as threads:
            for future in [threads.submit(work, seed) for seed in range(8)]:
                future.result()

    def test_memory_of_a_landing_is_its_own_until_it_is_released(self, backend: Backend, truth: list[bytes]) -> None:
        """Landings are held and released in random order, so that memory is used again while others are held."""
        random = np.random.default_rng(2)
        held: list[tuple[PendingRead, Extents]] = []
        for _ in range(60):
            wanted = random_extents(random, truth, int(random.integers(1, 40)), int(random.choice([100, 50_000])))
            held.append((backend.read(wanted), wanted))
            while len(held) > 6:
                landing, wanted = held.pop(int(random.integers(len(held))))
                assert self.landed(landing, wanted) == plain(truth, wanted)
                landing.release()
        for landing, wanted in held:
            assert self.landed(landing, wanted) == plain(truth, wanted)
            landing.release()

    def test_landings_may_be_dropped_without_being_waited_for(self, backend: Backend, truth: list[bytes]) -> None:
        """As when an epoch is abandoned."""
        wanted = extents([(1, 0, 500_000), (2, 0, 500_000)])
        for _ in range(10):
            backend.read(wanted)
        self.expect(backend, truth, wanted)

    def test_bytes_by_path_add_up(self, backend: Backend, truth: list[bytes]) -> None:
        """The counters hold at least what was wanted, and only grow."""
        assert sum(backend.bytes_by_path().values()) == 0
        wanted, total = extents([(0, 0, 100), (1, 50_000, 70_000), (2, _PAGE, _PAGE)]), 0
        for _ in range(3):
            self.expect(backend, truth, wanted)
            found = sum(backend.bytes_by_path().values())
            assert found >= total + wanted.total_bytes
            total = found

    def test_addresses_are_those_of_every_file_and_count(self, backend: Backend, truth: list[bytes]) -> None:
        """If the backend has them; then they stay what they are, and what is gathered from them is counted."""
        self.expect(backend, truth, extents((file, 0, len(data)) for file, data in enumerate(truth)))
        found = backend.addresses()
        if found is None:
            return
        assert backend.addressable
        assert found.base.shape == (len(truth),)
        assert backend.addresses() is found
        before = sum(backend.bytes_by_path().values())
        found.count(1000)
        assert sum(backend.bytes_by_path().values()) == before + 1000

    def test_check_is_content_with_files_that_stay(self, backend: Backend, truth: list[bytes]) -> None:
        """As often as it is asked."""
        every = np.arange(len(truth))
        self.expect(backend, truth, extents((file, 0, 10) for file in range(len(truth))))
        for _ in range(3):
            backend.check(every)
            time.sleep(_LATER_S / 2)
        backend.check(every[:0])

    @pytest.mark.parametrize("what", ["cut short", "written to", "replaced", "removed", "made longer"])
    def test_a_file_that_changes_is_noticed(
        self, backend: Backend, truth: list[bytes], files: Files, what: str
    ) -> None:
        """By `read`, its completion or `check`, whichever comes first; nobody uses the bytes before all three."""
        wanted = extents([(1, 10_000, 5000), (2, 0, 100)])
        self.expect(backend, truth, wanted)
        backend.check(np.array([1, 2]))
        spoil(Path(files.sources[1].path), what)
        with pytest.raises(ReadError, match=r"shard|file") as caught:
            bring_and_check_for_a_while(backend, wanted)
        assert caught.value.file == files.sources[1].path
        if what != "cut short":
            assert isinstance(caught.value, FileChangedError)

    @pytest.mark.parametrize("what", ["cut short", "removed", "made longer"])
    def test_a_file_that_changes_before_it_is_opened_is_noticed(
        self, backend: Backend, truth: list[bytes], files: Files, what: str
    ) -> None:
        """And the other files can still be read."""
        spoil(Path(files.sources[1].path), what)
        with pytest.raises(GdsloadError, match=r"shard|file|bytes") as caught:
            bring_and_check(backend, extents([(1, 10_000, 5000)]))
        assert isinstance(caught.value, ReadError | FormatError | FileNotFoundError)
        self.expect(backend, truth, extents([(2, 0, 1000)]))

    def test_close_may_be_called_twice_and_ends_all_reads(self, open_backend: OpenBackend, files: Files) -> None:
        """No thread of the backend outlives it."""
        before = set(threading.enumerate())
        backend = open_backend(files)
        landings = [backend.read(extents([(1, 0, 700_000), (2, 0, 700_000)])) for _ in range(20)]
        backend.close()
        backend.close()
        assert set(threading.enumerate()) <= before
        assert all(landing.completion.landed for landing in landings)
        assert isinstance(backend.bytes_by_path(), dict)

    def test_close_in_the_middle_of_other_threads_reads(self, open_backend: OpenBackend, files: Files) -> None:
        """They get their bytes or an error; nothing hangs and nothing crashes."""
        backend = open_backend(files)
        stop = threading.Event()

        def work() -> None:
            with suppress(Exception):
                while not stop.is_set():
                    backend.read(extents([(1, 0, 300_000), (0, 10, 10)])).completion.wait()

        threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.02)
        backend.close()
        stop.set()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        backend.close()


def extents(parts: object) -> Extents:
    """Extents from triples (file, offset, bytes)."""
    table = np.array(list(parts), np.int64).reshape(-1, 3)  # type: ignore[call-overload]  # any iterable of triples
    return Extents(table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy())


def random_extents(random: np.random.Generator, truth: list[bytes], count: int, longest: int) -> Extents:
    """Extents anywhere in the files, in any order."""
    sizes = np.array([len(data) for data in truth], np.int64)
    file = random.integers(0, len(truth), count)
    nbytes = np.minimum(random.integers(0, longest + 1, count), sizes[file])
    return Extents(file, (random.random(count) * (sizes[file] - nbytes + 1)).astype(np.int64), nbytes)


def plain(truth: list[bytes], wanted: Extents) -> list[bytes]:
    """The bytes of each extent, from plain reads."""
    triples = zip(wanted.file.tolist(), wanted.offset.tolist(), wanted.nbytes.tolist(), strict=True)
    return [truth[file][offset : offset + nbytes] for file, offset, nbytes in triples]


def bring_and_check_for_a_while(backend: Backend, wanted: Extents) -> None:
    """Do so again and again, as an epoch does."""
    soon = time.monotonic() + _SOON_S
    while time.monotonic() < soon:
        time.sleep(_LATER_S)
        bring_and_check(backend, wanted)


def bring_and_check(backend: Backend, wanted: Extents) -> None:
    """All that is done before anybody uses the bytes."""
    landing = backend.read(wanted)
    landing.completion.wait()
    backend.check(np.unique(wanted.file))


def spoil(path: Path, what: str) -> None:
    """Do to a file what must be noticed."""
    if what == "cut short":
        os.truncate(path, 8192)
    elif what == "made longer":
        os.truncate(path, path.stat().st_size + _PAGE)
    elif what == "written to":
        with path.open("r+b") as file:
            file.write(file.read(1))
    elif what == "replaced":
        other = path.with_suffix(".new")
        other.write_bytes(path.read_bytes())
        other.replace(path)
    else:
        path.unlink()
