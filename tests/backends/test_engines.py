"""cuFile's engine, with a cuFile that is not there: which reads are made by which call."""

from types import SimpleNamespace

import numpy as np
import pytest

from gdsload.backends.gds import engines
from gdsload.system.cufile_batches import ReadsUnderWayError


class Cufile:
    """Gives the files that are registered known handles, and notes the reads that are made one by one."""

    FileHandleType = SimpleNamespace(OPAQUE_FD=1)

    def __init__(self):
        self.read_alone, self.known = [], iter([71, 72])

    def handle_register(self, _descr):
        return next(self.known)

    def handle_deregister(self, _known):
        pass

    def read(self, handle, base, nbytes, offset, position):
        self.read_alone.append((handle, base, position, nbytes, offset))
        return nbytes


class Batches:
    """Notes the reads that are made by batches, or raises an error instead."""

    def __init__(self, cufile, refuses):
        self.refuses, self.read_together = refuses, []

    def read(self, *columns):
        if self.refuses:
            raise self.refuses
        self.read_together += list(zip(*(column.tolist() for column in columns), strict=True))
        return columns[3].copy()


@pytest.fixture
def make(monkeypatch, tmp_path):
    opened = []

    def made(refuses=None):
        cufile = Cufile()
        monkeypatch.setattr(engines, "_open_driver", lambda device: cufile)
        batches = Batches(cufile, refuses)
        monkeypatch.setattr(engines, "CufileBatches", lambda cufile: batches)
        engine = engines.CufileEngine(None, batches=True)
        with open(tmp_path / "shard", "wb") as file:
            handles = [engine.open(file.name, file.fileno()) for _ in range(2)]
        opened.extend((engine, handle) for handle in handles)
        return SimpleNamespace(engine=engine, handles=np.array(handles), cufile=cufile, batches=batches)

    yield made
    for engine, handle in opened:
        engine.close(handle)


@pytest.mark.parametrize(
    "sizes",
    [[], [2**20], [2**20 + 1], [4096, 2**23, 5, 2**20 + 1, 7], [2**21, 2**22], [0], [0, 9], [2**21, 0, 5, 0, 7]],
    ids=str,
)
@pytest.mark.parametrize("refuses", [None, RuntimeError("no batches here")], ids=["batches", "none"])
def test_every_read_is_made_once_and_long_and_empty_ones_are_in_no_batch(make, sizes, refuses):
    """A batch of cuFile's with an empty one never ends."""
    it, count = make(refuses), len(sizes)
    nbytes, places = np.array(sizes, np.int64), np.arange(count)
    done = it.engine.read_many(it.handles[places % 2], places + 100, places + 200, nbytes, places + 300)
    assert done.tolist() == sizes
    short = [size for size in sizes if 0 < size <= 2**20]
    wanted = {(71 if at % 2 == 0 else 72, at + 100, at + 200, size, at + 300) for at, size in enumerate(sizes) if size}
    made = [read for read in (*it.cufile.read_alone, *it.batches.read_together) if read[3]]
    assert (len(made), {*made}) == (len(wanted), wanted)
    assert [read[3] for read in it.batches.read_together] == ([] if refuses else short)
    assert it.engine.most_bytes == (0 if refuses and short else 2**20)


def test_reads_that_may_be_under_way_are_not_made_again(make):
    """They would be made into memory that the others may still land in."""
    it, same = make(ReadsUnderWayError("who knows")), np.arange(3)
    with pytest.raises(ReadsUnderWayError, match="who knows"):
        it.engine.read_many(it.handles[same % 2], same, same, same + 1, same)
    assert (it.cufile.read_alone, it.engine.most_bytes) == ([], 0)
