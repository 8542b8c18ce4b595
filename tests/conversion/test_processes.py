"""Conversions in several processes: ended at any moment, nothing is lost and nothing is left.

Each runs in a fork of the test's process, which has imported torch already.
"""

import multiprocessing
import os
import runpy
import signal
import sys
import textwrap
import time
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

import gdsload
from gdsload.errors import OptionError, ReadError
from tests.conversion.leisurely import Leisurely

ENOUGH_S = 20
"""For what takes a fraction of it on a machine that has time."""
PARTS, EACH = 40, 20


def convert(folder, pause_s=0.005, *, threads=False):
    source = Leisurely(PARTS, EACH, pause_s, threads=threads, begun=folder)
    return gdsload.convert(source, folder / "out", workers=2, shard_bytes=16 * EACH)


@contextmanager
def started(folder, call):
    """A call in a new process and session, as a shell would start it; its output goes to a file."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.setsid()
            sys.stdout = sys.stderr = open(folder / "said", "w", buffering=1)  # noqa: SIM115 - until the process ends
            call()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def of_session(session):
    """The processes that are left of a session."""
    found = []
    for entry in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            fields = Path(f"/proc/{int(entry)}/stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry))
    return found


def until(done, what):
    deadline = time.monotonic() + ENOUGH_S
    while not done():
        assert time.monotonic() < deadline, f"{what} takes too long"
        time.sleep(0.005)


def begun(folder):
    return list(folder.glob("begun-*"))


def finished(folder):
    return list(folder.glob(".out.gdsload-convert/part-??????.json"))


MOMENTS = {
    "a worker starts": lambda session, folder: len(of_session(session)) > 1,
    "parts are finished": lambda session, folder: len(finished(folder)) > 2,
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_it_and_the_next_run_goes_on(tmp_path, moment, number):
    with started(tmp_path, lambda: convert(tmp_path)) as pid:
        until(lambda: MOMENTS[moment](pid, tmp_path), moment)
        struck, before = time.monotonic(), len(begun(tmp_path))
        (os.killpg if number == signal.SIGINT else os.kill)(pid, number)  # a terminal sends it to all of a group
        code = ended(pid)
        took = time.monotonic() - struck
        until(lambda: not of_session(pid), "the end of the workers")
    kept, said = len(finished(tmp_path)), (tmp_path / "said").read_text()
    assert not (tmp_path / "out").exists()
    assert took < 6  # two seconds, where the machine has time for it
    assert len(begun(tmp_path)) <= before + 3  # two by workers, one queued for them: no others are begun
    if number == signal.SIGINT:
        assert (code, said.count("KeyboardInterrupt")) == (1, 1)
        assert (f"{kept} of 40 parts are finished" if kept else "no part is finished yet") in said
    assert convert(tmp_path, 0, threads=True).resumed == kept
    assert gdsload.ShardDataset(tmp_path / "out").column("n").tolist() == list(range(PARTS * EACH))
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.slow
def test_a_worker_that_is_killed_is_named(tmp_path):
    """The other parts are finished."""
    with pytest.raises(ReadError, match=r"a worker was lost: process \d+ ended with signal 9 \(SIGKILL\), in "):
        gdsload.convert(Leisurely(PARTS, EACH, 0, fatal=7), tmp_path / "out", workers=2, shard_bytes=16 * EACH)
    assert finished(tmp_path)


SCRIPT = """
    import os
    import gdsload
    from tests.conversion.leisurely import Leisurely

    print(os.getpid(), flush=True)
    out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "out")
    gdsload.convert(Leisurely(9, 9, 0), out, workers=2, shard_bytes=144)
"""


OWN = """
    import multiprocessing, os
    from tests.conversion.leisurely import Leisurely

    class Mine(Leisurely):
        pass

    here = os.path.dirname(os.path.abspath(__file__))
    if __name__ == "__main__":
        import gdsload

        print(os.getpid(), flush=True)
        gdsload.convert(Mine(9, 9, 0), os.path.join(here, "out"), workers=2, shard_bytes=144)
    else:
        with open(os.path.join(here, f"imported-{os.getpid()}"), "w") as file:
            file.write(str(multiprocessing.current_process()._inheriting))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("text", "imported"), [(SCRIPT, set()), (OWN, {"True"})])
def test_a_script_needs_a_guard_only_if_its_source_is_in_it(tmp_path, text, imported):
    """Else processes do not import it; those that do know that they do, for the next test."""
    (tmp_path / "script.py").write_text(textwrap.dedent(text))
    with started(tmp_path, lambda: runpy.run_path(str(tmp_path / "script.py"), run_name="__main__")) as pid:
        assert ended(pid) == 0
    assert (tmp_path / "said").read_text() == f"{pid}\n"
    assert {path.read_text() for path in tmp_path.glob("imported-*")} == imported
    assert len(gdsload.ShardDataset(tmp_path / "out")) == 81


def test_a_process_that_imports_a_script_with_its_source_converts_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    said = 'a worker process imports the script.*under `if __name__ == "__main__":`, or the source in another'
    with pytest.raises(OptionError, match=said):
        convert(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_worker_imports_no_torch_for_arrays_and_one_that_is_imported_would_have_one_thread(tmp_path, monkeypatch):
    seen = "{'torch': 'torch' in sys.modules, 'threads': int(os.environ.get('OMP_NUM_THREADS', 0))}"
    (tmp_path / "looked.py").write_text(f"import os, sys\ndef look(sample):\n    return {seen}\n")
    np.save(tmp_path / "x.npy", np.arange(20))
    monkeypatch.syspath_prepend(tmp_path)
    gdsload.convert(tmp_path / "x.npy", tmp_path / "out", map="looked:look", workers=2, shard_bytes=40)
    dataset = gdsload.ShardDataset(tmp_path / "out")
    assert not dataset.column("torch").any()
    assert dataset.column("threads").tolist() == [1] * 20
