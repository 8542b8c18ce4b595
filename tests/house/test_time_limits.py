"""A test that never ends is a red one with every thread's stack, in seconds that pyproject.toml names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
OPTIONS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]

WAYS = {
    "behind the run": "threading.Thread(target=forever).start()",
    "deaf to signals": "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n    forever()",
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_whatever_hangs_ends(tmp_path, way):
    program = f"import signal, threading\nforever = threading.Event().wait\n\n\ndef test_it():\n    {WAYS[way]}\n"
    (tmp_path / "test_hanging.py").write_text(program, encoding="utf-8")
    limits = ["-o", "timeout=0.2", "-o", "faulthandler_timeout=1"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), *limits, "-p", "no:cacheprovider",
         "-p", "pytest_timeout", "-p", "tests.at_the_end", "."],
        cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert ended.returncode == 1
    assert "Timeout (0:00:01)!" in ended.stderr
    assert (" in test_it\n" in ended.stderr) == (way != "behind the run")


def test_the_gentle_limits_come_first():
    """After them, the other tests go on."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    own = [int(seconds) for text in texts for seconds in re.findall(r"mark\.timeout\((\d+)\)", text)]
    assert len(own) > 10
    assert max(OPTIONS["timeout"], *own) <= OPTIONS["faulthandler_timeout"] - 60
