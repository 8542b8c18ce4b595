"""The probing process: however it ends, the asking process gets an answer, in time, and leaves nothing."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from gdsload.system.probe import CufileProbe, ask_cufile, probe_cufile
from gdsload.system.probe.process import MARK
from gdsload.system.probe.result import Status

OPENING = {"stage": "driver-open", "version": "1.20.0"}
BATCH = {"stage": "batch", "reason": "its bytes are right", "p2p_reads": 1, "read_bytes": 4096}
GOOD = {"stage": "done", "status": "ok", "reason": "a read was made", "nvfs_reads": 1, "p2p_reads": 0, "posix_reads": 0}
HANG = "while True: pass"
SEGFAULT = f"os.kill(os.getpid(), {int(signal.SIGSEGV)})"
NOISE = "sys.stdout.write('NOTE: loaded'); sys.stdout.flush()\n"
devices = itertools.count(1000)  # that nobody has asked about in this process


def saying(**known: object) -> str:
    return f"import os, sys; os.write(1, {f'{chr(10)}{MARK}{json.dumps(known)}{chr(10)}'.encode()!r})\n"


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A shard."""
    found = tmp_path / "data" / "a.safetensors"
    found.parent.mkdir()
    found.write_bytes(bytes(8192))
    return str(found)


def ask(file: str, program: str, timeout_s: float = 20.0) -> CufileProbe:
    return ask_cufile(
        file, "cuda:0", timeout_s, command=lambda file, device: [sys.executable, "-c", program, file, device]
    )


CUT_SHORT = f"os.write(1, {MARK.encode()!r} + b'{{\"sta')\n"
DRIVER = "while opening cuFile's driver (cuFileDriverOpen)"
MANY = "its bytes are right; no batch of reads is made: "


@pytest.mark.parametrize(
    ("program", "status", "stage", "reason"),
    [
        (saying(**GOOD), "ok", "done", "a read was made"),
        (saying(**OPENING) + NOISE + saying(**GOOD) + NOISE, "ok", "done", "a read was made"),
        (saying(**GOOD) + HANG, "ok", "done", "a read was made"),
        (HANG, "timeout", "start", "no answer within 0.5 s while starting Python and importing torch"),
        (saying(**OPENING) + CUT_SHORT + HANG, "timeout", "driver-open", f"no answer within 0.5 s {DRIVER}"),
        (saying(**OPENING) + SEGFAULT, "crashed", "driver-open", f"Segmentation fault {DRIVER}"),
        (saying(**BATCH) + HANG, "ok", "batch", f"{MANY}no answer within 0.5 s while reading many parts by one call"),
        (saying(**BATCH) + SEGFAULT, "ok", "batch", f"{MANY}Segmentation fault while reading many parts by one call"),
        (saying(**BATCH) + "os._exit(3)", "ok", "batch", f"{MANY}exit status 3"),
        ('print(\'{"status": "ok"}\')', "garbage", "start", "exit status 0 without an answer while starting Python"),
        ("import sys; sys.stdout.buffer.write(bytes(range(256)))", "garbage", "start", "exit status 0 without"),
        ("import no_such_module", "garbage", "start", "exit status 1 .*ModuleNotFoundError"),
        (saying(**OPENING) + "sys.exit('what it says')", "garbage", "driver-open", ".*DriverOpen.: what it says"),
    ],
)
def test_however_it_ends_there_is_an_answer_in_time(
    file: str, program: str, status: Status, stage: str, reason: str
) -> None:
    found = ask(file, program, timeout_s=0.5 if HANG in program else 20.0)
    assert (found.status, found.stage) == (status, stage)
    assert re.match(re.escape(reason) if ".*" not in reason else reason, found.reason)
    assert found.path == ("unknown" if status != "ok" else "gds-nvfs" if stage == "done" else "gds-p2p")
    assert found.proven is (status == "ok")
    assert found.version == ("1.20.0" if stage == "driver-open" else "")
    assert not found.batches
    assert 0 < found.seconds < (5 if HANG in program else 20)


def test_what_cannot_be_started_is_an_answer_too(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ask_cufile(file, command=lambda *_: ["/none/such"])
    assert (found.status, "could not be started" in found.reason) == ("crashed", True)
    monkeypatch.setattr(tempfile, "tempdir", f"{file}/none")
    found = ask(file, saying(**GOOD))
    assert (found.status, "there is no temporary folder" in found.reason) == ("crashed", True)


def test_the_process_gets_the_file_and_an_environment_that_leaves_nothing_behind(file: str, monkeypatch) -> None:
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
    found = ask(file, program)
    given, device, log = found.reason.split(" ")
    assert (given, device) == (file, "cuda:0")
    assert not os.path.exists(os.path.dirname(log))
    assert found.log == ("why it failed",)
    assert os.listdir(os.path.dirname(file)) == ["a.safetensors"]


def test_each_drive_and_device_is_asked_about_once_whatever_the_answer(file: str) -> None:
    asked = []

    def ask(*place: str) -> CufileProbe:
        asked.append(place)
        return CufileProbe("failed", nvfs_reads=len(asked))

    device, other = (f"cuda:{next(devices)}" for _ in range(2))
    places = [(file, device), (file, other), ("/proc/stat", device), ("/none/such", device)]
    first = [probe_cufile(*place, ask=ask) for place in places]
    again = [probe_cufile(*place, ask=ask) for place in [*places, (os.path.dirname(file), device)]]
    assert asked == places
    assert again == [*first, first[0]]


def test_the_real_process_answers_on_this_machine(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os.write(1, b'a stranger')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = ask_cufile(file, "cuda:0", 30.0)
    assert found.status not in ("garbage", "skipped")
    assert found.stage != "start"


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
