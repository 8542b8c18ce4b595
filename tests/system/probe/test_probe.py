"""The probing process: however it ends, the asking process gets an answer, in time, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import pytest

from gdsload.system.probe import CufileProbe, ask_cufile, probe, probe_cufile
from gdsload.system.probe.process import END_WITH_PARENT, MARK, module_command, module_environment, run_bounded
from gdsload.system.probe.result import Status
from tests.system.probe.test_process import gone

OPENING = {"stage": "driver-open", "version": "1.20.0"}
GOOD = {"stage": "done", "status": "ok", "reason": "a read was made", "nvfs_reads": 1, "p2p_reads": 0, "posix_reads": 0}
devices = itertools.count(1000)


def saying(**known: object) -> str:
    return f"import os, sys; os.write(1, {f'{chr(10)}{MARK}{json.dumps(known)}{chr(10)}'.encode()!r})\n"


def dying(number: int) -> str:
    return f"os.kill(os.getpid(), {int(number)})"


HANG = "while True: pass"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    """A folder with a shard."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.safetensors").write_bytes(bytes(8192))
    return data


def ask(folder: Path, program: str, timeout_s: float = 20.0) -> CufileProbe:
    return ask_cufile(
        folder, "cuda:0", timeout_s, command=lambda file, device: [sys.executable, "-c", program, file, device]
    )


DRIVER = "opening cuFile's driver (cuFileDriverOpen)"
CUT_SHORT = f"os.write(1, {MARK.encode()!r} + b'{{\"sta')\n"


@pytest.mark.parametrize(
    ("program", "status", "stage", "reason"),
    [
        (saying(**GOOD), "ok", "done", "a read was made"),
        (saying(**GOOD) + HANG, "ok", "done", "a read was made"),
        (HANG, "timeout", "start", "no answer within 1 s while starting Python and importing torch"),
        (saying(**OPENING) + CUT_SHORT + HANG, "timeout", "driver-open", f"no answer within 1 s while {DRIVER}"),
        (saying(**OPENING) + dying(signal.SIGSEGV), "crashed", "driver-open", f"SIGSEGV while {DRIVER}"),
    ],
    ids=["answer", "hang after it", "hang at once", "hang after a line that was cut short", "crash"],
)
def test_however_it_ends_there_is_an_answer_in_time(
    folder: Path, program: str, status: Status, stage: str, reason: str
):
    found = ask(folder, program, timeout_s=1.0 if HANG in program else 20.0)
    assert (found.status, found.stage, found.reason) == (status, stage, reason)
    assert (found.path, found.proven) == (("gds-nvfs", True) if status == "ok" else ("unknown", False))
    assert found.version == ("1.20.0" if stage == "driver-open" else "")
    assert 0 < found.seconds < (5 if HANG in program else 20)


@pytest.mark.parametrize(("ending", "why"), [
    (HANG, "no answer within 1 s while reading many parts by one call"),
    (dying(signal.SIGSEGV), "SIGSEGV while reading many parts by one call"),
    ("os._exit(3)", "exit status 3 while reading many parts by one call"),
])  # fmt: skip
def test_batches_that_hang_or_crash_are_done_without(folder: Path, ending: str, why: str):
    known = {"stage": "batch", "reason": "its bytes are right", "p2p_reads": 1, "read_bytes": 4096}
    found = ask(folder, saying(**known) + ending, timeout_s=1.0)
    assert (found.status, found.path, found.proven, found.batches) == ("ok", "gds-p2p", True, False)
    assert found.reason.startswith("its bytes are right; no batch of reads is made: ")
    assert why in found.reason


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("pass", "no answer that can be read while starting Python"),
        ('print(\'{"status": "ok", "nvfs_reads": 1}\')', "no answer"),
        ("import sys; sys.stdout.buffer.write(bytes(range(256)))", "no answer"),
        ("raise SystemExit(3)", "exit status 3"),
        ("import no_such_module", "ModuleNotFoundError"),
        (saying(**OPENING) + "sys.exit('what a library says')", "driver (cuFileDriverOpen): what a library says"),
    ],
)
def test_garbage_is_called_garbage(folder: Path, program: str, says: str):
    found = ask(folder, program)
    assert found.status == "garbage"
    assert says in found.reason


@pytest.mark.parametrize("noise", ["NOTE: loaded", '{"status": "failed"}', "\x00\xff\n\r", "[" * 9999])
def test_what_else_libraries_print_does_not_matter(folder: Path, noise: str):
    said = f"sys.stdout.buffer.write({noise.encode('latin-1')!r}); sys.stdout.flush()\n"
    program = f"import sys\n{said}{saying(**OPENING)}{said}{saying(**GOOD)}{said}"
    assert ask(folder, program).path == "gds-nvfs"


def test_what_cannot_be_started_is_an_answer_too(folder: Path, monkeypatch: pytest.MonkeyPatch):
    found = ask_cufile(folder, command=lambda file, device: ["/none/such"])
    assert found.status == "crashed"
    assert "could not be started" in found.reason
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "none"))
    found = ask(folder, saying(**GOOD))
    assert found.status == "crashed"
    assert "there is no temporary folder" in found.reason


def test_the_process_gets_the_file_and_an_environment_that_leaves_nothing_behind(folder: Path, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    program = (
        "import json, os, sys\n"
        "log = os.environ['CUFILE_LOGFILE_PATH']\n"
        "open(log, 'w').write('\\n  why it failed \\n\\n')\n"
        "assert 'PYTORCH_CUDA_ALLOC_CONF' not in os.environ\n"
        "open('core', 'w').close()\n"
        "reason = ' '.join([sys.argv[1], sys.argv[2], log])\n"
        f"print({MARK!r} + json.dumps({{'status': 'failed', 'reason': reason}}))"
    )
    found = ask(folder, program)
    file, device, log = found.reason.split(" ")
    assert (file, device) == (str(folder / "a.safetensors"), "cuda:0")
    assert not os.path.exists(os.path.dirname(log))
    assert found.log == ("why it failed",)
    assert os.listdir(folder) == ["a.safetensors"]


def test_a_file_that_was_made_for_the_read_is_removed_also_after_a_hang(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    assert ask(tmp_path / "empty", HANG, timeout_s=0.5).status == "timeout"
    assert os.listdir(tmp_path / "empty") == []


def test_a_process_that_ends_while_a_thread_of_it_asks_leaves_nothing(tmp_path: Path):
    for name in ("empty", "temporary"):
        (tmp_path / name).mkdir()
    child = f"{END_WITH_PARENT}; import os; open({str(tmp_path / 'pid')!r}, 'w').write('%d ' % os.getpid())\n{HANG}"
    program = f"""
import os, sys, threading, time
from gdsload.system.probe import ask_cufile
command = [sys.executable, "-c", {child!r}]
asking = {{"command": lambda file, device: command}}
threading.Thread(target=ask_cufile, args=({str(tmp_path / "empty")!r},), kwargs=asking, daemon=True).start()
while not (os.path.exists({str(tmp_path / "pid")!r}) and os.path.getsize({str(tmp_path / "pid")!r})):
    time.sleep(0.01)
"""
    environ = module_environment(os.environ) | {"TMPDIR": str(tmp_path / "temporary")}
    ran = run_bounded([sys.executable, "-c", program], timeout_s=30, environ=environ)
    assert (ran.code, ran.errors) == (0, "")
    assert gone((tmp_path / "pid").read_text().strip())
    assert os.listdir(tmp_path / "empty") == os.listdir(tmp_path / "temporary") == []


def test_no_library_needs_no_process(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probe, "find_libraries", lambda *arguments: [])
    monkeypatch.setattr(probe, "run_bounded", lambda *arguments, **options: pytest.fail("a process was started"))
    assert ask_cufile(folder).status == "missing"


class Asked:
    """Answers as if cuFile had been asked, and counts."""

    def __init__(self, status: Status = "ok", seconds: float = 0.0) -> None:
        self.status, self.seconds, self.count = status, seconds, 0

    def __call__(self, path: str, device: str) -> CufileProbe:
        self.count += 1
        time.sleep(self.seconds)
        return CufileProbe(self.status, nvfs_reads=self.count)


@pytest.fixture
def device() -> str:
    """A device that nobody has asked about in this process."""
    return f"cuda:{next(devices)}"


@pytest.mark.parametrize("status", sorted({*get_args(Status)} - {"skipped"}))
def test_a_drive_and_a_device_are_asked_about_once(folder: Path, device: str, status: Status):
    asked = Asked(status)
    first = probe_cufile(folder, device, ask=asked)
    (folder / "link").symlink_to(folder / "a.safetensors")
    for path in (folder, folder / "a.safetensors", folder / "link"):
        assert probe_cufile(path, device, ask=asked) is first
    assert (first.status, asked.count) == (status, 1)


def test_each_device_and_each_drive_is_asked_about(folder: Path, device: str):
    asked = Asked()
    for path, name in ((folder, device), (folder, f"cuda:{next(devices)}"), ("/proc", device), ("/none/such", device)):
        probe_cufile(path, name, ask=asked)
    assert asked.count == 4


def test_nowhere_to_read_from_is_not_remembered(tmp_path: Path, device: str):
    place = tmp_path / "none"
    never = Asked()
    skipped = probe_cufile(place, device, ask=lambda path, _: ask_cufile(path, command=lambda *_asked: ["/none/such"]))
    assert (skipped.status, probe_cufile(place, device, ask=never).status) == ("skipped", "ok")


def test_threads_that_ask_at_once_start_one_process(folder: Path, device: str):
    asked = Asked(seconds=0.3)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: probe_cufile(folder, device, ask=asked), range(4)))
    assert [(probe.path, probe.nvfs_reads) for probe in found] == [("gds-nvfs", 1)] * 4


@contextmanager
def asking(folder: Path, device: str, answer: CufileProbe) -> Iterator[None]:
    """Another thread asks about a drive and a device while a block runs, and is answered after it."""
    begun, over = threading.Event(), threading.Event()

    def slow(_path: str, _device: str) -> CufileProbe:
        begun.set()
        over.wait(60)
        return answer

    thread = threading.Thread(target=probe_cufile, args=(folder, device), kwargs={"ask": slow})
    thread.start()
    assert begun.wait(10)
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_who_asks_about_something_else_does_not_wait(folder: Path, device: str):
    with asking(folder, device, CufileProbe("timeout")):
        start = time.monotonic()
        assert probe_cufile(folder, f"cuda:{next(devices)}", ask=Asked()).status == "ok"
        assert time.monotonic() - start < 5


def answer_in_a_child(folder: Path, device: str, status: Status) -> bool:
    """Whether a forked process that asks gets an answer of this status."""
    child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(probe_cufile(folder, device, ask=Asked()).status != status)
    return os.waitpid(child, 0)[1] == 0


def test_a_forked_process_does_not_wait_for_a_thread_that_it_has_not(folder: Path, device: str):
    with asking(folder, device, CufileProbe("failed")):
        assert answer_in_a_child(folder, device, "ok")
    assert answer_in_a_child(folder, device, "failed")  # which was known before


@pytest.mark.slow
def test_the_real_process_answers_on_this_machine(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "sitecustomize.py").write_text("import os; os.write(1, b'a stranger')")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    command = module_command("gdsload.system.probe.child", str(folder / "a.safetensors"), "cuda:0")
    found = ask_cufile(folder, "cuda:0", 30.0, command=lambda file, device: command)
    assert found.status not in ("garbage", "skipped")
    assert found.stage != "start"
    ran = run_bounded(command, timeout_s=30, environ=module_environment(os.environ), folder="/")
    assert ran.output.startswith(f"a stranger\n{MARK}")


@pytest.mark.parametrize(
    ("counts", "path", "proven"),
    [
        ((1, 0, 0), "gds-nvfs", True),
        ((0, 2, 0), "gds-p2p", True),
        ((0, 0, 1), "cufile-posix", False),
        ((2, 0, 1), "mixed", True),
        ((0, 0, 0), "unknown", False),
        ((None, None, None), "unknown", False),
    ],
)
def test_only_counters_prove_a_path(counts: tuple[int | None, ...], path: str, proven: bool):
    found = CufileProbe("ok", nvfs_reads=counts[0], p2p_reads=counts[1], posix_reads=counts[2])
    assert (found.path, found.proven) == (path, proven)
    assert not dataclasses.replace(found, status="failed").proven
