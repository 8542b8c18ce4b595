"""The host backend, mapped and not, does what every backend must do; and the wrappers change nothing of it."""

import pytest

from gdsload.backends.host import HostBackend
from gdsload.testing import BackendTests, RecordingBackend, SlowBackend


class TestUnmapped(BackendTests):
    @pytest.fixture
    def open_backend(self):
        return HostBackend


class TestMapped(TestUnmapped):
    mapped = True


class TestWrapped(BackendTests):
    """Of one thread, too, which nothing may wait for in itself."""

    @pytest.fixture
    def open_backend(self):
        return lambda files: RecordingBackend(SlowBackend(HostBackend(files, threads=1), 0.0005))

    # These ask when reads have landed, which here is later than when they have ended.
    test_close_may_be_called_twice_and_ends_all_reads = None
