"""What tests of benchmarks share: contenders' processes that do not import everything anew."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from benchmarks import processes
from tests.benchmarks.forked import ForkingProcess


@pytest.fixture(scope="session")
def forked_contenders():
    """In a block with it contenders' processes are forked, not started: ``with ...(): main()``."""
    forking = ForkingProcess()

    @contextmanager
    def forked():
        others = {name: getattr(processes.subprocess, name) for name in ("PIPE", "TimeoutExpired")}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(processes, "subprocess", SimpleNamespace(Popen=forking.fork, **others))
            patch.setattr("os.sync", lambda: None)  # which waits for all that others write
            yield

    yield forked
    forking.close()
