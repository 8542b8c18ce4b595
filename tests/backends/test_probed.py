"""A backend that reads while cuFile is probed, and by DMA afterwards, with stand-ins for both."""

import threading

import pytest

from gdsload.backends.host import HostBackend
from gdsload.backends.probed import ProbedBackend
from gdsload.backends.request import one_way
from gdsload.testing import BackendTests, RecordingBackend
from gdsload.testing.conformance import extents as extents_of
from tests.backends.extents import files_in
from tests.pools import no_threads


def opened(files, name):
    backend = RecordingBackend(HostBackend(files, threads=2))
    backend.name = name
    return one_way(backend, name, "", "")


class TestConformance(BackendTests):
    mapped = may_be_in_place = True

    @pytest.fixture
    def open_backend(self):
        def made(files):
            backend = ProbedBackend(files, opened(files, "first"), lambda: (opened(files, "second"), "proven"))
            backend.settle()
            return backend

        return made


@pytest.fixture
def files(folder, to_close):
    return to_close(files_in(folder, mapped=True))


def read(backend):
    landing = backend.read(extents_of([(0, 8, 4)]))
    landing.completion.wait()
    landing.count()
    landing.release()


@pytest.mark.parametrize("proven", [True, False])
def test_it_reads_at_once_and_by_what_is_proven_afterwards(files, proven):
    asked = threading.Event()
    first, second = opened(files, "first"), opened(files, "second")
    backend = ProbedBackend(files, first, lambda: (asked.wait(30), (second if proven else None, "so it is"))[1])
    read(backend)
    assert (backend.now, backend.why) == (first, "cuFile is being probed")
    asked.set()
    backend.settle()
    read(backend)
    assert (backend.now, backend.why) == (second if proven else first, "so it is")
    assert [len(one.backend.reads) for one in (first, second)] == ([1, 1] if proven else [2, 0])
    assert backend.bytes_by_path() == {"host": 8}
    backend.close()


@pytest.mark.parametrize("proven", [True, False])
def test_close_waits_for_no_answer_and_what_comes_later_is_closed(files, proven):
    asked = threading.Event()
    first, second = opened(files, "first"), opened(files, "second")
    backend = ProbedBackend(files, first, lambda: (asked.wait(30), (second if proven else None, ""))[1])
    backend.close()
    assert (first.backend.closed, second.backend.closed) == (1, 0)
    asked.set()
    backend.settle()
    assert (first.backend.closed, second.backend.closed) == (1, int(proven))
    assert backend.now is first
    backend.close()


def test_without_a_thread_the_first_one_reads(files):
    with no_threads(RuntimeError("can't start new thread")):
        backend = ProbedBackend(files, opened(files, "first"), lambda: pytest.fail("it was asked"))
        read(backend)
        assert backend.why.startswith("cuFile was not probed: no thread can be started: can't start new thread.")
        backend.settle()
        backend.close()
