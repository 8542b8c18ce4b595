"""A test that never ends is a red one with every thread's stack, in seconds that pyproject.toml names."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
OPTIONS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]


def test_the_gentle_limits_come_first():
    """After them, the other tests go on."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    own = [int(seconds) for text in texts for seconds in re.findall(r"mark\.timeout\((\d+)\)", text)]
    assert len(own) > 10
    assert max(OPTIONS["timeout"], *own) <= OPTIONS["faulthandler_timeout"] - 60
