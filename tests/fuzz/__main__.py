"""Fuzzing as a command: ``python -m tests.fuzz TARGET --runs N``. It ends with exit code 0 if nothing was found.

Atheris finds inputs by what of gdsload they run. Without it they are random mutations of the corpus.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.util
import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

NAMES = ("header", "index", "offsets", "packed", "images", "state")
HUNG_S = 5
MOST_BYTES = 2**29
"""Memory that an input may take beside what is in use at first."""


class Fuzzer:
    """Runs inputs of a target, and counts them."""

    def __init__(self, target: str, folder: Path) -> None:
        from tests.fuzz.corpus import corpus
        from tests.fuzz.targets import Targets

        (folder / "files").mkdir()
        self.target, self.folder, self.begun = target, folder, time.monotonic()
        self.check = Targets(folder / "files").all[target]
        self.corpus = corpus(target, folder / "files")
        self.inputs = self.batches = 0
        faulthandler.register(signal.SIGALRM, chain=True)  # then the process ends
        for data in self.corpus:
            self.one(data)
        self.least = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def one(self, data: bytes) -> None:
        """Run one input; raises if it finds a fault, and keeps the input then."""
        self.inputs += 1
        try:
            signal.setitimer(signal.ITIMER_REAL, HUNG_S)
            self.batches += self.check(data)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if self.inputs > len(self.corpus):
                grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self.least) * 1024
                assert grown < MOST_BYTES + len(data), f"{grown} bytes of memory"
        except Exception:
            sys.stderr.write(f"{self.target}, input {self.inputs}: {data!r}\n")
            raise

    def counts(self) -> str:
        taken = time.monotonic() - self.begun
        counts: dict[str, Any] = {"inputs": self.inputs, "batches": self.batches, "seconds": round(taken)}
        return json.dumps({"target": self.target, **counts})


def fuzz(target: str, runs: int, seed: int, *, covered: bool) -> None:
    """Run the corpus and then random inputs, and print how many; with coverage, the process ends here."""
    from tests.fuzz.mutations import mutated

    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        if not covered:
            made, chosen = Fuzzer(target, folder), Random(f"{target} {seed}")
            for _ in range(runs):
                made.one(mutated(chosen.choice(made.corpus), chosen))
            sys.stdout.write(made.counts() + "\n")
            return
        import atheris

        with atheris.instrument_imports(include=["gdsload"]):  # the corpus imports all that its targets need
            made = Fuzzer(target, folder)
        (folder / "corpus").mkdir()
        for number, data in enumerate(made.corpus):
            (folder / "corpus" / str(number)).write_bytes(data)

        def one(data: bytes) -> None:
            made.one(data)
            if made.inputs == runs + len(made.corpus):
                sys.stdout.write(made.counts() + "\n")
                sys.stdout.flush()

        def mutator(data: bytes, most: int, seed: int) -> bytes:
            return mutated(data, Random(seed))[:most] if seed % 2 else atheris.Mutate(data, most)

        options = [
            f"-runs={runs}",
            f"-seed={seed + 1}",
            "-max_len=65536",
            "-timeout=0",
            "-rss_limit_mb=0",
            f"-artifact_prefix={folder}/",
        ]
        atheris.Setup([sys.argv[0], *options, str(folder / "corpus")], one, custom_mutator=mutator)
        atheris.Fuzz()


def main() -> int:
    """Fuzz targets: with coverage each in a process, since that ends with the last input."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", default=NAMES, metavar="TARGET", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--runs", type=int, default=1000, help="inputs of each target, beside those of the corpus")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="without coverage, also where there is atheris")
    chosen = parser.parse_args()
    covered = not chosen.plain and importlib.util.find_spec("atheris") is not None
    if not covered or len(chosen.targets) == 1:
        for target in chosen.targets:
            fuzz(target, chosen.runs, chosen.seed, covered=covered)
        return 0
    options = [f"--runs={chosen.runs}", f"--seed={chosen.seed}"]
    commands = [[sys.executable, "-m", "tests.fuzz", target, *options] for target in chosen.targets]
    return max(subprocess.run(command, check=False).returncode != 0 for command in commands)


if __name__ == "__main__":
    sys.exit(main())
