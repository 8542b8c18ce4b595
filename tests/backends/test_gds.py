"""The `gds` backend's reads, with an engine that copies into memory of the host: all of it but cuFile and the GPU."""

import os
from contextlib import nullcontext

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gdsload.backends.gds import slots
from gdsload.backends.gds.engines import one_by_one
from gdsload.backends.gds.gds import GdsBackend
from gdsload.errors import ReadError, ShortReadError
from gdsload.shards.catalog import open_catalog
from gdsload.shards.drive_order import file_system_of
from gdsload.system.cufile_batches import ReadsUnderWayError
from gdsload.system.memory import address_of, memory_at
from gdsload.testing.conformance import extents as extents_of
from tests.backends.extents import bytes_of, within
from tests.drives import files_of

SIZES = [60_003, 5_000, 300_000]


class Engine:
    """Copies, some bytes at a time."""

    name = "copies"
    most_bytes = 0
    at_once = 1 << 30
    answers = None

    def __init__(self, _device):
        pass

    def open(self, path, _fd):
        return os.open(path, os.O_RDONLY)

    def close(self, handle):
        os.close(handle)

    def read(self, handle, base, position, nbytes, offset):
        if self.answers is not None and offset:
            return self.answers()
        return os.preadv(handle, [memory_at(base + position, min(nbytes, self.at_once))], offset)

    def read_many(self, *columns):
        return one_by_one(self, *columns)

    def end(self):
        pass


@pytest.fixture
def opened(tmp_path_factory, monkeypatch, to_close):
    """Makes backends of files whose bytes are known."""
    kept, folder = [], tmp_path_factory.mktemp("gds")
    for number, size in enumerate(SIZES):
        rows = np.random.default_rng(number).integers(0, 256, size, np.uint8)
        safetensors.numpy.save_file({"x": rows}, folder / f"{number}.safetensors")

    def allocate(_device, nbytes):
        kept.append(np.full(nbytes, 170, np.uint8))
        return address_of(kept[-1])

    monkeypatch.setattr(slots, "allocate", allocate)
    monkeypatch.setattr(slots, "free", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)

    def build(*, drive_key=file_system_of, **flaws):
        engine = type("Flawed", (Engine,), flaws)
        files = files_of(where=drive_key)(open_catalog(str(folder)).sources, mapped=False)
        backend = GdsBackend(files, torch.device("cpu"), engine=engine, register=False, threads=4)
        return to_close(backend), [path.read_bytes() for path in sorted(folder.iterdir())]

    return build


some = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300_000), st.integers(0, 9000)), min_size=1, max_size=400)


@pytest.mark.parametrize("most_bytes", [0, 1 << 20], ids=["threads", "one call"])
@pytest.mark.parametrize("at_once", [1 << 30, 1000])
@pytest.mark.parametrize("drive_key", [file_system_of, lambda source: "1.safe" in source.path], ids=["one", "two"])
@settings(derandomize=True, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some)
def test_every_wanted_byte_is_read_to_its_place(opened, drive_key, at_once, most_bytes, wanted):
    """Also where reads end early."""
    backend, contents = opened(drive_key=drive_key, at_once=at_once, most_bytes=most_bytes)
    wanted = within(SIZES, wanted)
    pending = backend.read(extents_of(wanted))
    assert bytes_of(pending, wanted) == [contents[file][offset : offset + nbytes] for file, offset, nbytes in wanted]
    pending.release()
    assert sum(backend.bytes_by_path().values()) >= len({one for one in wanted if one[2]})


def raising(text):
    def answers(_engine):
        raise RuntimeError(text)

    return answers


@pytest.mark.parametrize(
    ("answers", "kind", "said"),
    [
        (lambda _self: 0, ShortReadError, "byte 8192: the file ended 4096 bytes too early"),
        (raising("EOF"), ShortReadError, "byte 8192: the file ended 4096 bytes too early"),
        (lambda _self: -5, ReadError, "byte 8192: cuFile cannot read: it returned -5"),
        (raising("boom"), ReadError, "byte 8192: cuFile cannot read: boom"),
    ],
)
def test_reads_that_fail(opened, answers, kind, said):
    backend, _ = opened(answers=answers)
    pending = backend.read(extents_of([(2, 9000, 100), (0, 0, 50)]))
    with pytest.raises(kind, match=rf"2.safetensors, {said}"):
        pending.completion.wait()
    pending.release()


def test_memory_of_reads_that_may_be_under_way_is_neither_used_again_nor_freed(opened, monkeypatch):
    lost, freed = [ReadsUnderWayError("cuFile does not tell")], []

    def read_many(engine, *columns):
        if lost:
            raise lost.pop()
        return one_by_one(engine, *columns)

    backend, _ = opened(most_bytes=1 << 20, read_many=read_many)
    monkeypatch.setattr(slots, "free", lambda _device, address: freed.append(address))
    wanted = extents_of([(0, 0, 50)])
    pending = backend.read(wanted)
    with pytest.raises(ReadError, match="cuFile does not tell"):
        pending.completion.wait()
    pending.release()
    after = backend.read(wanted)
    after.completion.wait()
    after.release()
    assert not set(after.begins.tolist()) & set(pending.begins.tolist())
    backend.close()
    assert freed == after.begins.tolist()


def test_a_batch_of_reads_has_reads_of_all_drives(opened):
    """One batch is under way at a time, in a whole process: of one drive only, it would leave the others idle."""
    calls = []

    def read_many(engine, handles, *columns):
        calls.append(handles.tolist())
        return one_by_one(engine, handles, *columns)

    backend, _ = opened(drive_key=lambda source: "2.safe" in source.path, most_bytes=1 << 20, read_many=read_many)
    wanted = extents_of([(file, page * 24_576, 100) for file in (0, 2) for page in range(SIZES[file] // 24_576)])
    backend.read(wanted).completion.wait()
    [[first, second, *rest]] = calls
    assert first != second
    assert rest == [first, second] + [rest[-1]] * 10
