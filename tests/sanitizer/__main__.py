"""The GPU tests under NVIDIA's compute-sanitizer: ``python -m tests.sanitizer``; exit code 1 if it finds anything.

Each file runs in a process, and gdsload's kernels are checked. The sanitizer has kernels wait for each other and takes
its time, and torch keeps no memory for later, so tests that show a race, measure time, count torch's memory or record
CUDA graphs fail: that counts for nothing, what it finds in memory does. Tests that start other programs, which it does
not follow, are left out, one that makes half a million copies, and those of backends, which launch no kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LEFT_OUT = "not (forked_process or left_open_ends or verdict or very_many_short_runs)"
OPTIONS = [
    "--target-processes=application-only",
    "--launch-timeout=0",  # by default a test that first uses CUDA after ten seconds waits for the sanitizer for ever
    "--show-backtrace=device",  # the host's has Python's frames, for which it waits while another thread waits for it
    "--destroy-on-device-error=kernel",
    "--report-api-errors=no",  # tests ask for memory that there is not, and for what has been freed
    "--print-limit=20",
    "--error-exitcode=99",
]
ERRORS = re.compile(r"^=========.* SUMMARY: (\d+) (?:error|hazard)", re.MULTILINE)
TESTS = re.compile(r"^(?:\d+ \w+(?:, )?)+ in [\d.]+s.*$", re.MULTILINE)


def kernels() -> list[str]:
    """The names of gdsload's kernels."""
    found = re.compile(r"__global__ void LAYOUT (\w+)\(")
    return sorted({name for path in (ROOT / "gdsload").rglob("*.py") for name in found.findall(path.read_text())})


def build(folder: Path) -> Path:
    """Compile what pads memory into a folder."""
    target = folder / "padded.so"
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", target, HERE / "padded.c", "-ldl"]
    subprocess.run(command, check=True)
    return target


def found_in(text: str, finished: bool) -> dict[str, Any]:
    """The result in a file's output: the errors found, and the tests; not finished if that was cut off."""
    errors = [int(count) for count in ERRORS.findall(text)]  # all, and once more those that were not printed
    tests = TESTS.findall(text)
    return {
        "errors": max(errors, default=0),
        "tests": tests[-1] if tests else "",
        "finished": finished and bool(errors) and bool(tests),
    }


def check(tests: str, chosen: argparse.Namespace, preloaded: Path, gpus: list[str]) -> dict[str, Any]:
    """Run the tests of a file, or those that pytest finds for a name, under the sanitizer."""
    turn = sum(tests.encode()) % max(len(gpus), 1)
    environment = {
        **os.environ,
        "LD_PRELOAD": str(preloaded),
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",  # an allocation for each tensor, so that each has an end
        "CUDA_VISIBLE_DEVICES": ",".join(gpus[turn:] + gpus[:turn]),
        "OMP_NUM_THREADS": "2",
    }
    names = [option for name in kernels() for option in ("--kernel-name", f"kne={name}")]
    pytest = ["-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-o", "timeout=600", "-k", LEFT_OUT, tests]
    command = [chosen.sanitizer, "--tool", chosen.tool, *OPTIONS, *names, sys.executable, *pytest]
    log, begun = chosen.logs / f"{tests.replace('/', '.')}.{chosen.tool}.log", time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out, start_new_session=True)
        try:
            process.wait(chosen.seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the tests, which the sanitizer has started
    ended = process.wait() != -signal.SIGKILL
    found = found_in(log.read_text(errors="replace"), ended)
    shown = {"tests of": tests, "seconds": round(time.monotonic() - begun), **found}
    sys.stdout.write(json.dumps(shown) + "\n")
    return shown


def main() -> int:
    """Check all files, some at once."""
    parser = argparse.ArgumentParser(prog="python -m tests.sanitizer", description=__doc__)
    parser.add_argument("tests", nargs="*", help="files, or classes of a file, as for pytest; default: all GPU tests")
    parser.add_argument("--tool", default="memcheck", choices=["memcheck", "racecheck", "initcheck", "synccheck"])
    parser.add_argument("--sanitizer", default=shutil.which("compute-sanitizer"), help="the program; default: on PATH")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1800, help="that a process may take")
    parser.add_argument("--logs", type=Path, default=Path("sanitizer"), help="a folder for what is printed")
    parser.add_argument("--out", type=Path, help="a file for the figures")
    chosen = parser.parse_args()
    if not chosen.sanitizer:
        parser.error("there is no compute-sanitizer; install the CUDA toolkit, or pass --sanitizer")
    import torch

    gpus = [str(number) for number in range(torch.cuda.device_count())]
    paths = [path.relative_to(ROOT) for path in sorted((ROOT / "tests").rglob("test_*on_gpu.py"))]
    files = [str(path) for path in paths if "backends" not in path.parts]
    chosen.logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sanitizer-") as folder, ThreadPoolExecutor(chosen.processes) as pool:
        each = partial(check, chosen=chosen, preloaded=build(Path(folder)), gpus=gpus)
        found = list(pool.map(each, chosen.tests or files))
    gpu = torch.cuda.get_device_name() if gpus else None
    record = {"tool": chosen.tool, "gpu": gpu, "torch": torch.__version__, "kernels": kernels(), "runs": found}
    if chosen.out:
        chosen.out.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(each["errors"] or not each["finished"] for each in found))


if __name__ == "__main__":
    sys.exit(main())
