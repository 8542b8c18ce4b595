"""Run the whole test suite on a machine with GPUs, and keep a record of the run.

    python tools/gpu_suite.py [--out PATH] [--processes N] [ARGS]   runs the suite; ARGS are for pytest
    python tools/gpu_suite.py --check [--out PATH]                  says whether the record is of this tree

The record has the hash of all files of gdsload/, so that no commit has to be known where the tests run. Docstrings are
left out: a run says nothing of them, and tests of help texts need no GPU. `--check` takes no record of a part of the
suite, of failures, or of a machine that lacks hardware that tests need.
It needs the standard library and pytest, and is itself the plugin of pytest that counts.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import datetime as dt
import hashlib
import importlib.metadata
import itertools
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parent.parent
RECORD = "benchmarks/results/gpu-suite.json"
REQUIRED = ("cuda", "cufile", "two")
"""The hardware that GDSLOAD_REQUIRE has to name: without it, tests that lack the hardware are skipped."""
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_COUNTS = "GDSLOAD_SUITE_COUNTS"
"""Names the file that the plugin writes."""
_PACKAGES = re.compile(r"torch|numpy|pytest|pytest-xdist|cupy-.*|kvikio-.*|cuda-bindings|nvidia-cufile.*|torchcodec")


def tree_hash(root: Path) -> str:
    """The hash of all files of gdsload/ under `root`: their paths and bytes, in order, without docstrings."""
    found = hashlib.sha256()
    package = root / "gdsload"
    for path in sorted(package.rglob("*"), key=lambda path: path.relative_to(package).as_posix()):
        if path.is_file() and "__pycache__" not in path.parts:
            for part in (path.relative_to(package).as_posix().encode(), _code(path)):
                found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()


def _code(path: Path) -> bytes:
    """The bytes of a file; of a Python file without its docstrings."""
    content = path.read_bytes()
    if path.suffix != ".py":
        return content
    begins = [0, *itertools.accumulate(map(len, content.splitlines(keepends=True)))]
    spans = []
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            low = begins[text.lineno - 1] + text.col_offset
            high = begins[(text.end_lineno or 0) - 1] + (text.end_col_offset or 0)
            spans.append((low, high))
    for low, high in sorted(spans, reverse=True):
        content = content[:low] + content[high:]
    return content


def refusal(record: Any, tree: str) -> str | None:
    """Why a record does not say that the whole suite has passed with this tree; None if it does.

    Args:
        record: what `main` wrote.
        tree: the hash of the tree.
    """
    if not isinstance(record, dict) or not isinstance(record.get("counts"), dict):
        return "it is no record of the suite"
    counts, missing = record["counts"], [name for name in REQUIRED if name not in record.get("require", "").split(",")]
    if record.get("gdsload") != tree:
        return "gdsload/ has changed since the run"
    if record.get("arguments") != []:
        return f"it is of a part of the suite: pytest got {shlex.join(map(str, record.get('arguments') or ['?']))}"
    if missing:
        return f"GDSLOAD_REQUIRE lacked {', '.join(missing)}: tests that need it may have been skipped"
    if bad := counts.get("failed", 0) + counts.get("errors", 0):
        return f"{bad} tests failed"
    if not counts.get("passed"):
        return "no test has passed"
    if record.get("status") != 0:
        return f"pytest ended with status {record.get('status')}"
    return None


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Run the suite or check its record; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--check", action="store_true", help="whether the record is of this tree, and has no failures")
    parser.add_argument(
        "--out", type=Path, help=f"the record; {RECORD} by default, and no file for a part of the suite"
    )
    parser.add_argument("-n", "--processes", type=int, help="run the tests in so many processes, by pytest-xdist")
    given, rest = parser.parse_known_args(arguments)
    rest = [argument for argument in rest if argument != "--"]
    if given.check:
        return _check(given.out or root / RECORD, root)
    rest += shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
    out: Path | None = given.out or (None if rest else root / RECORD)
    record, status = _run(root, rest, given.processes)
    if record is None:
        print("There is no record: pytest did not come to its end, or gdsload/ has changed meanwhile.", file=sys.stderr)
        return status or 1
    if out is None:
        print("There is no record of a part of the suite without --out PATH.")
    else:
        out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        print(f"The record is {out}.")
    return status


def _check(path: Path, root: Path) -> int:
    """Say whether a record is good; the exit status."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        why = refusal(record, tree_hash(root))
        if why is None:
            print(f"{path}: the suite has passed on {record['machine'].get('gpu')} with this gdsload/.")
            return 0
    except (OSError, ValueError) as error:
        why = f"it cannot be read: {error}"
    except (AttributeError, KeyError, TypeError) as error:  # a part is missing, or another thing
        why = f"it is no record of the suite: {type(error).__name__}: {error}"
    print(f"{path} does not say that the suite passes with this gdsload/: {why}.", file=sys.stderr)
    return 1


def _run(root: Path, arguments: list[str], processes: int | None) -> tuple[dict[str, Any] | None, int]:
    """Run pytest: the record, and pytest's status. None if there is nothing to record."""
    tree, began = tree_hash(root), time.monotonic()
    date = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    several = [] if processes is None else ["-n", str(processes), "--dist", "loadfile"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    with tempfile.TemporaryDirectory() as folder:
        counted = Path(folder) / "counts.json"
        status = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "tools.gpu_suite", "-p", "no:benchmark", *several, *arguments],
            cwd=root,
            env=environment | {_COUNTS: str(counted)},
            check=False,
        ).returncode
        if not counted.exists() or tree_hash(root) != tree:
            return None, status
        seen = json.loads(counted.read_text(encoding="utf-8"))
    return {
        "gdsload": tree,
        "commit": _commit(root),
        "date": date,
        "seconds": round(time.monotonic() - began, 1),
        "arguments": arguments,
        "processes": processes or 1,
        "require": os.environ.get("GDSLOAD_REQUIRE", ""),
        "status": status,
        **seen,
    }, status


def _commit(root: Path) -> str | None:
    """The commit that is checked out, marked as dirty if files differ from it; None where that is not known."""

    def asked(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False).stdout.strip()

    with contextlib.suppress(OSError):
        if commit := asked("rev-parse", "HEAD"):
            return f"{commit}-dirty" if asked("status", "--porcelain") else commit
    return None


def _machine() -> dict[str, Any]:
    """The machine and the versions that the tests ran on; torch is asked only if they have imported it."""
    found: dict[str, Any] = {"kernel": platform.release(), "driver": None}
    with contextlib.suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
        found["driver"] = next(iter(re.findall(r"\b\d+\.\d+(?:\.\d+)?\b", text)), None)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        found |= {"gpu": torch.cuda.get_device_name(), "gpus": torch.cuda.device_count(), "cuda": torch.version.cuda}
    return found


def _versions() -> dict[str, str]:
    installed = {str(one.name).lower() for one in importlib.metadata.distributions() if one.name}
    # By name: of several that are installed, the one that is imported.
    named = {name: importlib.metadata.version(name) for name in sorted(installed) if _PACKAGES.fullmatch(name)}
    return {"python": platform.python_version(), **named}


class _Counts:
    """Counts tests by what became of them, and skips by their reasons."""

    def __init__(self, out: Path) -> None:
        self._out, self._counts, self._skips = out, Counter[str](), Counter[str]()
        self._failures: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        expected = hasattr(report, "wasxfail")
        if report.failed:
            self._counts["failed" if report.when == "call" else "errors"] += 1
            self._failures.append(report.nodeid)
        elif report.skipped:
            self._counts["xfailed" if expected else "skipped"] += 1
            if not expected and isinstance(report.longrepr, tuple):
                self._skips[str(report.longrepr[2]).removeprefix("Skipped: ")] += 1
        elif report.when == "call":
            self._counts["xpassed" if expected else "passed"] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._counts["errors"] += 1
        elif report.skipped and isinstance(report.longrepr, tuple):
            self._counts["skipped"] += 1
            self._skips[str(report.longrepr[2]).removeprefix("Skipped: ")] += 1

    def pytest_sessionfinish(self) -> None:
        names = ("passed", "failed", "errors", "skipped", "xfailed", "xpassed")
        seen = {
            "counts": {name: self._counts[name] for name in names},
            "skips": dict(sorted(self._skips.items())),
            "failures": sorted(self._failures),
            "machine": _machine(),
            "versions": _versions(),
        }
        self._out.write_text(json.dumps(seen), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Count, in the process that has all reports: xdist's workers send theirs there."""
    out = os.environ.get(_COUNTS)
    if out and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Counts(Path(out)))


if __name__ == "__main__":
    sys.exit(main())
