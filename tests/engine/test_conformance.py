"""The batch sources do what every source must do; those of a GPU with its kernels, streams and memory played by the host."""

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gdsload.backends.base import ShardAddresses
from gdsload.backends.host import HostBackend
from gdsload.engine import resident, resident_source, window_source
from gdsload.engine.assemble import Assembler
from gdsload.engine.landed import LandedSource
from gdsload.engine.resident import ResidentGather
from gdsload.engine.resident_source import ResidentSource, VramSource
from gdsload.engine.stats import LoaderStats
from gdsload.engine.window_source import WindowSource
from gdsload.kernels import gather_positions
from gdsload.kernels.gather_pieces import table_of
from gdsload.kernels.position_kernels import WORDS
from gdsload.shards.gather_host import gather_rows
from gdsload.system.memory import BatchPool, address_of
from gdsload.testing import RecordingBackend
from tests.backends.extents import Reachable
from tests.engine.jobs import job_over
from tests.engine.on_host import CPU, HostMaker, Ids, Past, at, tensors_on_host
from tests.engine.source_conformance import BatchSourceTests, WindowSourceTests


class Landed(BatchSourceTests):
    mapped = True

    @pytest.fixture
    def open_source(self, backends):
        def opened(dataset, steps, fields, transform=None):
            job, form = job_over(dataset, steps, fields, mapped=self.mapped, transform=transform)
            backends.append(RecordingBackend(self.open_backend(job.table.files)))
            return self.source(job, backends[-1], form)

        return opened

    def open_backend(self, files):
        return HostBackend(files)

    def source(self, job, backend, form):
        return LandedSource(job, backend, Assembler(form, BatchPool(1 << 20)), LoaderStats())


class TestMapped(Landed):
    pass


class TestUnmapped(Landed):
    mapped = False


# --- as on a GPU ---


class Coming(Reachable):
    """Has all shards within reach: in their mappings, or copies of them.

    Until they are, it is asked some times, and reads into an arena.
    """

    def __init__(self, files, *, copies=False, asked=0):
        super().__init__(files)
        self.in_place, self.asked = not asked, asked
        self.kept = [np.fromfile(source.path, np.uint8) for source in files.sources] if copies else []
        base = np.array([address_of(memory) for memory in self.kept], np.int64) if copies else files.base
        self.found = ShardAddresses(base, lambda _nbytes: None)

    def addresses(self):
        self.asked -= 1
        return self.found if self.asked < 0 else None


def launch(name, _device, _grid, params, *, over_pcie):
    """The kernels that gather rows, and make pieces of them, in numpy."""
    found, outs = SimpleNamespace(**dict(zip(WORDS, params.tolist(), strict=False))), params[len(WORDS) :].tolist()
    size = found.size or found.words // found.width
    for batch, out in enumerate(outs[: found.all // (found.tiles or size)]):
        ids = found.first + found.stride * batch + np.arange(size)
        if found.table:
            ids = at(found.table, int(ids[-1]) + 1)[ids]
        run = np.searchsorted(at(found.ends, found.runs), ids, side="right")
        addresses = at(found.origins, found.runs)[run] + ids * found.row_bytes
        if name == "gather":
            gather_rows(addresses, found.row_bytes, out)
        else:
            assert name == "pieces"
            table = at(found.pieces, 4 * found.all).reshape(4, -1)[:, batch * size :][:, :size]
            places = out + np.arange(size) * found.row_bytes
            table[:] = table_of(addresses, places, np.full(size, found.row_bytes))
            table[3] = np.diff(table[3], prepend=0)


def queue_pieces(table, words, _device, *, over_pcie):
    """The kernel that copies pieces, in numpy."""
    sources, targets, nbytes, ends = table.tolist()
    assert ends[-1] <= words
    for source, target, count in zip(sources, targets, nbytes, strict=True):
        ctypes.memmove(target, source, count)


class OnHost(Landed):
    """Only what needs a GPU is replaced: kernels, streams, and memory."""

    ragged = False

    @pytest.fixture(autouse=True)
    def no_gpu(self, monkeypatch):
        tensors_on_host(monkeypatch)
        monkeypatch.setattr(gather_positions, "kernel", lambda _source, name, *_rest: name)
        monkeypatch.setattr(gather_positions, "launch", launch)
        monkeypatch.setattr(gather_positions, "queue_pieces", queue_pieces)
        monkeypatch.setattr(resident, "BlockIds", Ids)
        monkeypatch.setattr(window_source, "BlockIds", Ids)
        monkeypatch.setattr(window_source, "on", nullcontext)
        stream = SimpleNamespace(device=CPU, cuda_stream=0)
        monkeypatch.setattr(resident_source, "current_stream", lambda _device: stream)
        monkeypatch.setattr(resident_source, "stream_handle", lambda _device: 0)
        monkeypatch.setattr(resident_source, "on", nullcontext)
        monkeypatch.setattr(resident_source, "record", lambda _stream: Past())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: stream)

    @pytest.fixture(autouse=True)
    def gathered(self, monkeypatch):
        """The steps that were gathered: what cannot be would be read instead, and nobody would notice."""
        found, real = [], ResidentGather.gather
        monkeypatch.setattr(ResidentGather, "gather", lambda *given: (real(*given), found.extend(given[1]))[0])
        yield
        assert found

    def open_backend(self, files):
        return Coming(files, copies=self.copies)

    def gather(self, job, backend, form):
        on_host = job.table.files.in_mappings if not self.copies else lambda found: np.zeros(len(found), bool)
        return ResidentGather(job, job.steps, backend, HostMaker(form, on_host))

    def source(self, job, backend, form):
        gather = self.gather(job, backend, form)
        return ResidentSource(gather, job, backend, gather.maker, LoaderStats())


class TestResident(OnHost):
    def gather(self, job, backend, form):
        found = super().gather(job, backend, form)
        assert found.ready()
        assert found.over_pcie
        return found


class TestResidentByPieces(TestResident):
    """Rows are copied as pieces, however short they are."""

    @pytest.fixture(autouse=True)
    def copied(self, no_gpu, monkeypatch, request):
        found = []
        monkeypatch.setattr(gather_positions, "as_pieces", lambda *_: True)
        monkeypatch.setattr(
            gather_positions, "queue_pieces", lambda *given, **how: (found.append(given), queue_pieces(*given, **how))
        )
        yield
        assert found or "sequential" in request.node.name  # in that order, all are runs


class TestComingWithinReach(OnHost):
    """Groups are read, windows and all, until the shards can be reached."""

    @pytest.fixture(autouse=True)
    def gathered(self):
        """Some tests end before that."""

    def open_backend(self, files):
        return Coming(files, asked=2)

    # It accounts for the reading of groups that are gathered, too: one that is within reach may have to be read.
    test_arena_memory_is_accounted_for = None

    def test_windows_are_let_go_then(self, open_source, backends, dataset, steps):
        source = open_source(dataset, steps, ("x",))
        for low in range(0, 8, 2):
            source.start(range(low, low + 2)).result(lambda: False)
        assert backends[0].held_bytes == 0


class TestVram(OnHost):
    copies = True

    def source(self, job, backend, form):
        gather = self.gather(job, backend, form)
        assert gather.ready()
        assert not gather.over_pcie
        return VramSource(gather, job, CPU, LoaderStats())


class TestWindows(WindowSourceTests, OnHost):
    mapped = False

    @pytest.fixture(autouse=True)
    def gathered(self, monkeypatch):
        found, real = [], WindowSource.start
        monkeypatch.setattr(WindowSource, "start", lambda *given: (real(*given), found.append(given))[0])
        yield
        assert found

    def open_backend(self, files):
        return HostBackend(files)

    def source(self, job, backend, form):
        maker = HostMaker(form, None)
        return WindowSource(job, job.steps.order, job.steps.schedule, backend, maker, LoaderStats())
