"""Conversions in processes of their own: ended at any moment, nothing lost, nothing left, and one line that says so."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

import gdsload
from gdsload.conversion import recognise

ROOT = Path(gdsload.__file__).parent.parent
ENOUGH_S = 20
"""For what takes a fraction of it on a machine that has time."""
PARTS, EACH = 40, 20

SOURCE = """
    import os, time
    from gdsload.conversion.source import Item, Part

    class Slow:
        kind, threads = "slow numbers", THREADS

        def describe(self):
            return {}

        def parts(self, target_bytes):
            return [Part(f"part {n}", (n,), 20) for n in range(40)]

        def read(self, part):
            (n,) = part.where
            open(f"begun-{n}-{os.getpid()}", "w").close()
            for k in range(20):
                time.sleep(PAUSE)
                yield Item(f"{k}", dict(n=20 * n + k).copy)
"""
COMMAND = """
    import sys
    import gdsload.tools.cli.convert as command
    from gdsload.tools.cli import main
    from gdsload.conversion import recognise

    recognise.recognise = lambda path: "slow"  # a kind that has all the time that a test needs
    recognise.KINDS["slow"] = ("slow", "Kind")
    sys.modules["gdsload.conversion.sources.slow"] = sys.modules["slow"]
    sys.exit(main(["convert", "slow.py", "out", "--kind", "slow", "--workers", "2", "--shard-bytes", "160"]))
"""


def source(*, threads, pause):
    return textwrap.dedent(SOURCE).replace("THREADS", str(threads)).replace("PAUSE", str(pause))


@pytest.fixture
def script(tmp_path):
    """Write a script that converts. Its source is in a module of its own, or in the script itself."""

    def write(text, *, threads=False, pause=0.005, alone=True):
        text, made = textwrap.dedent(text), source(threads=threads, pause=pause)
        if alone:
            (tmp_path / "slow.py").write_text(
                f"{made}\nclass Kind(Slow):\n    def __init__(self, path):\n        pass\n"
            )
        path = tmp_path / "script.py"
        path.write_text(("from slow import Slow\n" if alone else made) + text)
        return path

    return write


@contextmanager
def started(path):
    """A program in a process group of its own, as a shell would start it."""
    process = subprocess.Popen(
        [sys.executable, str(path)], cwd=path.parent, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        process.stderr.close()


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
    "a part is begun": lambda session, folder: begun(folder),
    "parts are finished": lambda session, folder: len(finished(folder)) > 2,
}


@pytest.fixture
def go_on(script, tmp_path, monkeypatch, capsys):
    """The same command goes on, to the same result; in threads of the test's own process, which begin sooner."""

    def check(kept):
        monkeypatch.setattr(recognise, "recognise", recognise.recognise)
        monkeypatch.setitem(recognise.KINDS, "slow", None)
        monkeypatch.setitem(sys.modules, "gdsload.conversion.sources.slow", None)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(SystemExit, match="0"):
            runpy.run_path(script(COMMAND, pause=0, threads=True))
        del sys.modules["slow"]
        said, complaint = capsys.readouterr()
        assert complaint == ""
        assert "800 samples in" in said
        assert f"{kept} parts were there from an interrupted run" in said
        dataset = gdsload.ShardDataset(tmp_path / "out")
        assert [int(sample["n"]) for sample in dataset.__getitems__(range(PARTS * EACH))] == list(range(PARTS * EACH))
        assert not list(tmp_path.glob(".out*"))

    return check


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "number", "threads"),
    [
        ("a worker starts", signal.SIGINT, False),
        ("a part is begun", signal.SIGINT, False),
        ("parts are finished", signal.SIGINT, True),
        ("parts are finished", signal.SIGTERM, False),
    ],
)
def test_a_signal_ends_it_and_the_next_run_goes_on(script, tmp_path, go_on, moment, number, threads):
    with started(script(COMMAND, threads=threads)) as process:
        until(lambda: MOMENTS[moment](process.pid, tmp_path), moment)
        struck, before = time.monotonic(), len(begun(tmp_path))
        os.killpg(process.pid, number)  # as a terminal does, and a service manager
        said, complaint = process.communicate(timeout=ENOUGH_S)
        took = time.monotonic() - struck
        until(lambda: not of_session(process.pid), "the end of the workers")
    kept = len(finished(tmp_path))
    assert (process.returncode, said) == (130 if number == signal.SIGINT else 143, "")
    assert took < 6  # two seconds, where the machine has time for it
    assert len(begun(tmp_path)) <= before + 2  # what was queued is not begun
    wanted = f"{kept} of 40 parts are finished, in {tmp_path}/.out.gdsload-convert; run the same again to go on, "
    wanted += "or with --restart to begin again"
    assert (
        complaint == f"stopped: {wanted if kept else 'no part is finished yet; run the same again to begin again.'}\n"
    )
    assert not (tmp_path / "out").exists()
    if kept:
        go_on(kept)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["a worker starts", "parts are finished"])
def test_a_parent_that_is_killed_leaves_no_workers(script, tmp_path, moment):
    with started(script(COMMAND)) as process:
        until(lambda: MOMENTS[moment](process.pid, tmp_path), moment)
        os.kill(process.pid, signal.SIGKILL)
        until(lambda: not of_session(process.pid), "the end of the workers")
        assert process.communicate(timeout=ENOUGH_S) == ("", "")


CALL = 'gdsload.convert(Slow(), "out", workers=2, shard_bytes=160)'


@pytest.mark.slow
def test_a_script_needs_no_guard(script, tmp_path):
    text = f"import os, gdsload\nprint(os.getpid(), flush=True)\nprint({CALL}.samples)"
    with started(script(text, pause=0)) as process:
        said, complaint = process.communicate(timeout=60)
    pid, samples = said.splitlines()  # once each
    assert (samples, complaint) == ("800", "")
    others = {path.name.rpartition("-")[2] for path in begun(tmp_path)} - {pid}
    assert len(others) == 2


@pytest.mark.slow
def test_a_script_with_its_own_source_needs_one(script):
    with started(script(f"import gdsload\n{CALL}", pause=0, alone=False)) as process:
        _, complaint = process.communicate(timeout=60)
    assert process.returncode == 1
    assert complaint.count("OptionError") == 1
    last = complaint.splitlines()[-1]
    assert last.startswith("gdsload.errors.OptionError: a worker process imports the script")
    assert 'Put the call under `if __name__ == "__main__":`, or the source in another module' in last


@pytest.mark.slow
def test_a_worker_imports_no_torch_for_arrays_and_one_that_is_imported_has_one_thread(tmp_path, monkeypatch):
    looked = """
        import sys

        def look(sample):
            before, threads = "torch" in sys.modules, 0
            if sample["x"] == 19:
                import torch

                threads = torch.get_num_threads()
            return {**sample, "before": before, "threads": threads}
    """
    (tmp_path / "looked.py").write_text(textwrap.dedent(looked))
    np.save(tmp_path / "x.npy", np.arange(20))
    monkeypatch.syspath_prepend(tmp_path)
    gdsload.convert(tmp_path / "x.npy", tmp_path / "out", map="looked:look", workers=2, shard_bytes=40)
    samples = gdsload.ShardDataset(tmp_path / "out").__getitems__(range(20))
    assert not any(sample["before"].item() for sample in samples)
    assert [sample["threads"].item() for sample in samples] == [0] * 19 + [1]


@pytest.mark.slow
def test_a_worker_that_is_killed_is_named(script, tmp_path):
    """The source is in the script, which has the guard that it needs: the other parts are finished."""
    fatal = """
        import signal
        import gdsload

        class Fatal(Slow):
            def read(self, part):
                if part.where == (7,):
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().read(part)

        if __name__ == "__main__":
            gdsload.convert(Fatal(), "out", workers=2, shard_bytes=160)
    """
    with started(script(fatal, pause=0, alone=False)) as process:
        _, complaint = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "ReadError: a worker was lost: process" in complaint
    assert "ended with signal 9 (SIGKILL)" in complaint
    assert finished(tmp_path)
