"""The probing process: however it ends, the asking process gets an answer, in time, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gdsload.system.probe import CufileProbe, probe, probe_cufile
from gdsload.system.probe.process import END_WITH_PARENT, module_command, module_environment, run_bounded
from gdsload.system.probe.result import STATUSES
from gdsload.system.probe.trial_file import trial_file

GOOD = CufileProbe("ok", "a read was made", "done", nvfs_reads=1, p2p_reads=0, posix_reads=0)
KNOWN = '{"stage": "driver-open", "version": "1.20.0"}'


def saying(stage: str) -> str:
    return f"import sys; print('gdsload-stage: ' + {stage!r}, file=sys.stderr, flush=True)"


STAGE, LOADING, CUDA = saying(KNOWN), saying('{"stage": "library"}'), saying('{"stage": "cuda"}')
NORMAL = f"print({json.dumps(json.dumps(GOOD.to_json()))})"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a shard; the cache is a fresh one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.safetensors").write_bytes(bytes(8192))
    return data


def ask(folder: Path, program: str, timeout_s: float = 20.0, **options) -> CufileProbe:
    return probe_cufile(
        folder,
        timeout_s=timeout_s,
        command=lambda file, device: [sys.executable, "-c", program, file, device],
        **options,
    )


def test_an_answer_is_passed_on_and_remembered(folder: Path):
    first = ask(folder, NORMAL)
    assert (first.status, first.path, first.proven, first.cached) == ("ok", "gds-nvfs", True, False)
    second = ask(folder, "raise SystemExit('asked again')")
    assert second.cached
    assert second.path == "gds-nvfs"
    assert not ask(folder, NORMAL, refresh=True).cached


def test_a_hang_is_ended_reported_with_what_it_was_doing_and_remembered(folder: Path):
    start = time.monotonic()
    found = ask(folder, f"{STAGE}\nwhile True: pass", timeout_s=1.0)
    assert time.monotonic() - start < 5
    assert (found.status, found.stage, found.version) == ("timeout", "driver-open", "1.20.0")
    assert "no answer within 1 s while opening cuFile's driver" in found.reason
    start = time.monotonic()
    assert ask(folder, NORMAL, timeout_s=1.0).status == "timeout"
    assert time.monotonic() - start < 0.5


@pytest.mark.parametrize("said", ["", LOADING, CUDA], ids=["importing", "loading libcufile", "initialising CUDA"])
def test_loading_has_a_time_of_its_own(folder: Path, said: str):
    loads = f"{said}\nimport time; time.sleep(1.5); {STAGE}\n{NORMAL}"
    found = ask(folder, loads, timeout_s=1.0, loading_s=20.0)
    assert (found.status, found.path) == ("ok", "gds-nvfs")
    assert found.seconds > 1.4


def test_no_answer_in_a_hurry_is_not_believed_by_who_has_time(folder: Path):
    assert ask(folder, "while True: pass", timeout_s=1.0, loading_s=0.2).status == "timeout"
    assert ask(folder, NORMAL).status == "ok"


def test_a_line_that_was_cut_short_hides_no_stage(folder: Path):
    cut = """sys.stderr.write('gdsload-stage: {"sta'); sys.stderr.flush()"""
    found = ask(folder, f"{STAGE}\n{cut}\nwhile True: pass", timeout_s=1.0)
    assert (found.status, found.stage) == ("timeout", "driver-open")


def test_a_library_that_does_not_load_is_ended_and_named(folder: Path):
    start = time.monotonic()
    found = ask(folder, "while True: pass", timeout_s=60.0, loading_s=1.0)
    assert time.monotonic() - start < 5
    assert (found.status, found.stage) == ("timeout", "start")
    assert "no answer within 1 s while starting Python" in found.reason


@pytest.mark.parametrize(("ending", "why"), [
    ("while True: pass", "no answer within 1 s while reading many parts by one call"),
    (f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})", "SIGSEGV while reading many parts by one call"),
    ("os._exit(3)", "exit status 3 while reading many parts by one call"),
])  # fmt: skip
def test_batches_that_hang_or_crash_are_done_without(folder: Path, ending: str, why: str):
    known = {"stage": "batch", "reason": "its bytes are right", "p2p_reads": 1, "read_bytes": 4096}
    said = f"""import os, sys; os.write(2, b'\\n{"gdsload-stage: " + json.dumps(known)}\\n')\n{ending}"""
    found = ask(folder, said, timeout_s=1.0)
    assert (found.status, found.path, found.proven, found.batches) == ("ok", "gds-p2p", True, False)
    assert found.reason.startswith("its bytes are right; no batch of reads is made: ")
    assert why in found.reason


def test_a_crash_names_the_signal(folder: Path):
    found = ask(folder, f"{STAGE}\nimport os; os.kill(os.getpid(), {int(signal.SIGSEGV)})")
    assert (found.status, found.reason) == ("crashed", "SIGSEGV while opening cuFile's driver (cuFileDriverOpen)")
    assert not found.proven


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("pass", "no answer"),
        ("print('hello')", "no answer"),
        ("print('[]')", "no answer"),
        ('print(\'{"status": "splendid"}\')', "no answer"),
        ('print(\'{"status": "ok", "nvfs_reads": -1}\')', "no answer"),
        ('print(\'{"status": "ok", "nvfs_reads": "many"}\')', "no answer"),
        ("print('[' * 100000)", "no answer"),
        ("import sys; sys.stdout.buffer.write(bytes(range(256)))", "no answer"),
        ("raise SystemExit(3)", "exit status 3"),
        ("import no_such_module", "ModuleNotFoundError"),
    ],
)
def test_garbage_is_called_garbage(folder: Path, program: str, says: str):
    found = ask(folder, program)
    assert found.status == "garbage"
    assert says in found.reason


def test_a_flood_is_ended(folder: Path):
    start = time.monotonic()
    assert ask(folder, "import os\nwhile True: os.write(1, b'x' * 65536)").status == "crashed"
    assert time.monotonic() - start < 10


def test_a_program_that_cannot_be_started(folder: Path):
    found = probe_cufile(folder, command=lambda file, device: ["/none/such"])
    assert found.status == "crashed"
    assert "could not be started" in found.reason


def test_a_grandchild_that_holds_the_pipe_does_not_delay_the_answer(folder: Path):
    start = time.monotonic()
    found = ask(folder, f"import subprocess\nsubprocess.Popen(['sleep', '30'])\n{NORMAL}")
    assert found.status == "ok"
    assert time.monotonic() - start < 10


def test_what_else_a_library_prints_does_not_matter(folder: Path):
    assert ask(folder, f"print('NOTE: loaded'); {NORMAL}").status == "ok"


def test_the_process_gets_the_file_and_an_environment_that_leaves_nothing_behind(folder: Path, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    program = (
        "import json, os, sys\n"
        "log = os.environ['CUFILE_LOGFILE_PATH']\n"
        "open(log, 'w').write('\\n  why it failed \\n\\n')\n"
        "assert 'PYTORCH_CUDA_ALLOC_CONF' not in os.environ\n"
        "open('core', 'w').close()\n"
        "print(json.dumps({'status': 'failed', 'reason': ' '.join([sys.argv[1], sys.argv[2], log])}))"
    )
    found = ask(folder, program)
    file, device, log = found.reason.split(" ")
    assert (file, device) == (str(folder / "a.safetensors"), "cuda:0")
    assert not os.path.exists(os.path.dirname(log))
    assert found.log == ("why it failed",)
    assert os.listdir(folder) == ["a.safetensors"]


def test_no_library_needs_no_process(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probe, "find_libraries", lambda *arguments: [])
    monkeypatch.setattr(probe, "run_bounded", lambda *arguments, **options: pytest.fail("a process was started"))
    assert probe_cufile(folder).status == "missing"


def test_nowhere_to_read_from_is_not_remembered(tmp_path: Path):
    assert ask(tmp_path / "none", NORMAL).status == "skipped"
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_ranks_that_ask_at_once_start_one_process(folder: Path, tmp_path: Path):
    program = f"import time; open({str(tmp_path / 'count')!r}, 'a').write('x'); time.sleep(0.3)\n{NORMAL}"
    found: list[CufileProbe] = []
    threads = [threading.Thread(target=lambda: found.append(ask(folder, program))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [probe.path for probe in found] == ["gds-nvfs"] * 4
    assert (tmp_path / "count").read_text() == "x"


@pytest.mark.slow
def test_the_real_process_answers_on_this_machine(folder: Path):
    command = module_command("gdsload.system.probe", str(folder / "a.safetensors"), "cuda:0")
    ran = run_bounded(command, timeout_s=30, environ=module_environment(os.environ), folder="/")
    if not ran.timed_out:
        found = CufileProbe.from_json(json.loads(ran.output.splitlines()[-1]))
        assert found is not None
        assert found.status in STATUSES
    assert "gdsload-stage:" in ran.errors


def test_a_process_that_hangs_ends_with_the_one_that_asked(tmp_path: Path):
    note = tmp_path / "pid"
    child = f"{END_WITH_PARENT}; import os; open({str(note)!r}, 'w').write(str(os.getpid()))\nwhile True: pass"
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", parent]) as process:
        deadline = time.monotonic() + 20
        while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
    while Path(f"/proc/{note.read_text()}").exists() and time.monotonic() < deadline:
        state = Path(f"/proc/{note.read_text()}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "Z":
            break  # dead, and only waiting for init
        time.sleep(0.01)
    else:
        assert not Path(f"/proc/{note.read_text()}").exists()


@pytest.mark.parametrize("name", ["ctypes", "os", "runpy", "__future__", "gdsload"])
def test_nothing_in_the_working_folder_is_imported(tmp_path: Path, name: str):
    """Somebody may have put it beside the data that are converted there."""
    (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger')")
    command = module_command("gdsload.system.version")
    ran = run_bounded(command, timeout_s=30, environ=module_environment(os.environ), folder=str(tmp_path))
    assert (ran.code, "a stranger" in ran.errors) == (0, False)


def test_a_process_whose_starter_has_ended_already_does_nothing(folder: Path):
    """It may have been killed before the child could ask to end with it."""
    command = module_command("gdsload.system.probe", str(folder / "a.safetensors"), "cuda:0")
    orphan = f"import os, subprocess; print(subprocess.run({command!r}, capture_output=True).returncode)"
    ran = run_bounded([sys.executable, "-c", orphan], timeout_s=30, environ=module_environment(os.environ))
    assert (ran.output.strip(), ran.errors) == ("1", "")  # its parent is not who made the command


def test_a_shard_is_preferred_and_nothing_is_made(folder: Path):
    (folder / "0.bin").write_bytes(bytes(8192))
    with trial_file(str(folder)) as file:
        assert file == str(folder / "a.safetensors")
    with trial_file(str(folder / "0.bin")) as file:
        assert file == str(folder / "0.bin")


def test_links_and_small_files_are_passed_over_and_a_made_file_is_removed(tmp_path: Path, folder: Path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "small.safetensors").write_bytes(b"x")
    (empty / "link.safetensors").symlink_to(folder / "a.safetensors")
    with trial_file(str(empty), may_make=False) as file:
        assert file is None
    with trial_file(str(empty)) as file:
        assert file is not None
        assert os.path.getsize(file) == 2**20
        assert os.path.basename(file).startswith(".gdsload-trial-")
    assert sorted(os.listdir(empty)) == ["link.safetensors", "small.safetensors"]


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
    assert CufileProbe.from_json(json.loads(json.dumps(found.to_json()))) == found
