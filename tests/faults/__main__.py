"""The sweep of faults as a command: ``python -m tests.faults``; exit code 1 if anything is wrong."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE / "injector.c"
AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Memory that is freed goes back to the system, so that a limit is felt."""


def build(folder: Path, compiler: str) -> Path:
    """Compile the injector into a folder."""
    target = folder / "injector.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", target, SOURCE, "-ldl"], check=True)
    return target


def main() -> int:
    """Sweep, in a process that the injector is loaded into."""
    from tests.faults.works import HUNGRY, POWER, WORKS

    works = [*WORKS, *HUNGRY, *POWER]
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("works", nargs="*", default=works, metavar="WORK", help=f"of {', '.join(works)}")
    parser.add_argument("--share", type=float, default=1.0, help="of all faults, chosen by the seed")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        if "injector.so" not in os.environ.get("LD_PRELOAD", ""):
            preloaded = {**os.environ, "LD_PRELOAD": str(build(Path(folder), os.environ.get("CC", "cc"))), **AT_ONCE}
            return subprocess.run(
                [sys.executable, "-m", "tests.faults", *sys.argv[1:]], env=preloaded, check=False
            ).returncode
        from tests.faults.power import power
        from tests.faults.sweep import sweep

        wrong, begun = 0, time.monotonic()
        for tried in (sweep, power):
            if names := [name for name in chosen.works if (name in POWER) == (tried is power)]:
                counts = tried(Path(folder), names, chosen.share, chosen.seed)
                counts["seconds"] = round(time.monotonic() - begun)
                sys.stdout.write(json.dumps(counts) + "\n")
                wrong += counts["wrong"]
        return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
