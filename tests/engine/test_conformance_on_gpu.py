"""The batch sources of a GPU do what every source must do, whatever reads."""

import time
from functools import partial

import numpy as np
import pytest
import torch

from gdsload.backends.bounce.bounce import BounceBackend
from gdsload.backends.gds.gds import GdsBackend
from gdsload.backends.mapped import MappedBackend
from gdsload.backends.tiers.tiered import Tiered
from gdsload.backends.tiers.vram import VramTier
from gdsload.engine.assemble import BatchForm
from gdsload.engine.codecs import codecs_of
from gdsload.engine.gpu.assemble_device import DeviceAssembler
from gdsload.engine.gpu.device_queue import DeviceQueue
from gdsload.engine.landed import LandedSource
from gdsload.engine.resident import ResidentGather
from gdsload.engine.resident_source import ResidentSource, VramSource
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Job
from gdsload.engine.window_source import WindowSource
from gdsload.shards.reads import Extents
from gdsload.shards.shard_table import ShardTable
from gdsload.testing import RecordingBackend
from tests.engine.source_conformance import BatchSourceTests, WindowSourceTests

pytestmark = pytest.mark.cuda


class OnDevice(BatchSourceTests):
    """A subclass says which backend reads, and which source makes batches on the device."""

    mapped = False

    @pytest.fixture
    def open_source(self, backends, device):
        def opened(dataset, steps, fields, transform=None):
            table = ShardTable.of(dataset.sources, dataset.stored, mapped=self.mapped)
            form = BatchForm(codecs_of(dataset.stored, fields, "offsets"))
            backends.append(RecordingBackend(self.open_backend(table, form.columns, device)))
            maker = DeviceAssembler(form, DeviceQueue(device), on_host=table.files.in_mappings)
            return self.source(Job(table, steps, transform=transform), backends[-1], maker)

        return opened

    def source(self, job, backend, maker):
        return LandedSource(job, backend, maker, LoaderStats())


# --- batches whose bytes are read ---


class TestBounce(OnDevice):
    def open_backend(self, table, _fields, device):
        return BounceBackend(table.files, device, pinned_bytes=2**22)


class TestBounceOutOfMappings(TestBounce):
    """Bytes in the page cache are gathered from there."""

    mapped = True


class TestMapped(OnDevice):
    mapped = True

    def open_backend(self, table, _fields, device):
        return MappedBackend(table.files, device, register_bytes=2**30)


@pytest.mark.usefixtures("cufile")
class TestGds(OnDevice):
    def open_backend(self, table, _fields, device):
        return GdsBackend(table.files, device, register=False)


class Windows(WindowSourceTests, OnDevice):
    def source(self, job, backend, maker):
        pytest.importorskip("cupy")
        found = WindowSource.of(job, backend, maker, LoaderStats())
        assert found is not None
        return found


class TestWindowsOfBounce(Windows, TestBounce):
    pass


class TestWindowsOfGds(Windows, TestGds):
    pass


# --- batches of shards within the GPU's reach ---


class TestComingWithinReach(TestMapped):
    """Groups are read until all shards have been registered by that."""

    ragged = False

    def source(self, job, backend, maker):
        gather = ResidentGather.of(job, backend, maker)
        return ResidentSource(gather, job, backend, maker, LoaderStats())


def read_all(backend, shards):
    """Have a byte of every shard read: then the backend registers or keeps them all."""
    every = np.arange(shards)
    landing = backend.read(Extents(every, np.zeros_like(every), np.ones_like(every)))
    landing.completion.wait()
    landing.release()


class Within(TestMapped):
    """Sources that gather by positions."""

    ragged = False

    @pytest.fixture(autouse=True)
    def all_gathered(self, gathered, device):
        """Shards that cannot be addressed are read instead. A test without its `device` is skipped before."""
        yield
        assert gathered


class TestResident(Within):
    """Every shard is registered before the first step."""

    def source(self, job, backend, maker):
        read_all(backend, len(job.table.ends))
        gather = ResidentGather.of(job, backend, maker)
        assert gather.ready()
        assert gather.over_pcie
        return ResidentSource(gather, job, backend, maker, LoaderStats())

    def test_it_says_that_the_gpu_is_busy(self, open_source, dataset, steps):
        """Or a thread would wait for each group before it queues the next one, and the link be idle meanwhile."""
        source = open_source(dataset, steps, ("x",))
        source.start(range(2)).result(lambda: False)  # a kernel that is loaded may have to wait for those that run
        with torch.cuda.stream(source.maker.stream):
            torch.cuda._sleep(2_000_000_000)  # a second: the thread may have to wait for a processor
        pending = source.start(range(2))
        assert not pending.landed()
        source.maker.stream.synchronize()
        assert pending.landed()
        pending.result(lambda: False)


class TestResidentOnTheSecond(TestResident):
    """On another device than torch's current one, where there is one."""

    @pytest.fixture
    def device(self, two_gpus):
        return torch.device("cuda", 1)


class TestVram(Within):
    """Every shard is in the GPU's memory."""

    copies = True

    def open_backend(self, table, fields, device):
        tier = VramTier(table.files, device, span=partial(table.span, names=fields), vram_bytes=2**30)
        return Tiered("vram+bounce", table.files, tier, BounceBackend(table.files, device, pinned_bytes=2**22))

    def source(self, job, backend, maker):
        read_all(backend, len(job.table.ends))
        gather, deadline = ResidentGather.of(job, backend, maker), time.monotonic() + 20
        while backend.addresses() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        assert gather.ready()
        assert not gather.over_pcie
        return VramSource(gather, job, maker.device, LoaderStats())
