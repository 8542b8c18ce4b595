"""The batch source over what a backend reads, and what the suite of batch sources notices."""

from __future__ import annotations

import pytest

from gdsload.backends.host import HostBackend
from gdsload.engine.assemble import Assembler, BatchForm
from gdsload.engine.landed import LandedSource
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Job, Selection
from gdsload.shards.shard_table import ShardTable
from gdsload.system.memory import BatchPool
from gdsload.testing import BatchSourceTests, RecordingBackend


class Landed(BatchSourceTests):
    mapped = True

    @pytest.fixture
    def open_source(self):
        made = []

        def opened(dataset, steps, fields):
            table = ShardTable.of(dataset.sources, dataset.schema, mapped=self.mapped)
            made.append(RecordingBackend(HostBackend(table.files)))
            job = Job(table, steps, Selection(), fields)
            wanted = {name: dataset.schema[name] for name in fields}
            maker = Assembler(wanted, BatchPool(1 << 20), BatchForm(ragged="offsets"))
            return LandedSource(job, made[-1], maker, LoaderStats())

        yield opened
        for backend in made:
            backend.close()
            assert backend.released_twice == 0


class TestMapped(Landed):
    pass


class TestUnmapped(Landed):
    mapped = False
