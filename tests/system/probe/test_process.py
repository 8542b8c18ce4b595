"""A program that may hang or crash: it ends in time, with all it started, and at the latest with its parent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gdsload.system.probe.process import END_WITH_PARENT, Ran, module_command, module_environment, run_bounded


def run(program: str, timeout_s: float = 30.0) -> Ran:
    return run_bounded([sys.executable, "-c", program], timeout_s=timeout_s, environ=os.environ)


def gone(pid: str) -> bool:
    """Return whether a process ends within a while; one that only waits for init has."""
    for _ in range(2000):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_a_program_that_ends():
    found = run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert found == Ran(3, "out\n", "err\n", timed_out=False)


def test_a_program_that_hangs_is_killed_with_all_it_started():
    start = time.monotonic()
    found = run("import os\nos.fork()\nos.write(1, b'%d ' % os.getpid())\nwhile True: pass", timeout_s=0.4)
    assert time.monotonic() - start < 5
    assert (found.code, found.timed_out) == (-9, True)
    pids = found.output.split()
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


@pytest.mark.parametrize("command", [["/none/such"], ["a\0b"]])
def test_a_program_that_cannot_be_started(command: list[str]):
    found = run_bounded(command, timeout_s=1.0, environ={})
    assert found.code is None
    assert "it could not be started: " in found.errors


def test_a_process_that_hangs_ends_with_the_one_that_asked(tmp_path: Path):
    note = tmp_path / "pid"
    child = f"{END_WITH_PARENT}; import os; open({str(note)!r}, 'w').write(str(os.getpid()))\nwhile True: pass"
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", parent]) as process:
        deadline = time.monotonic() + 20
        while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
    assert gone(note.read_text())


@pytest.mark.parametrize("name", ["ctypes", "runpy", "gdsload"])
def test_nothing_in_the_working_folder_is_imported(tmp_path: Path, name: str):
    """Somebody may have put it beside the data that are converted there."""
    (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger')")
    command = module_command("gdsload.system.version")
    ran = run_bounded(command, timeout_s=30, environ=module_environment(os.environ), folder=str(tmp_path))
    assert (ran.code, "a stranger" in ran.errors) == (0, False)
