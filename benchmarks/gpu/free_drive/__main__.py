"""Benchmark of the library's own cost: the loader over a simulated drive, beside the link to the GPU.

    python -m benchmarks.gpu.free_drive --out free-drive.json
    python -m benchmarks.gpu.free_drive --out fast-drive.json --drive 25GB/s,80us,256
    python -m benchmarks.gpu.free_drive --out free-drive.json --device cpu --cases host-rows-4k-full
    python -m benchmarks.gpu.free_drive --out two-drives.json --drive 500MB/s,80us,64 --drives 1 2 --one-queue

Every number is of a simulated drive. See the README beside this folder.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gdsload
from benchmarks.folders import existing_folder
from benchmarks.gpu.free_drive.cases import KINDS, SMALL, Case, cases_of
from benchmarks.gpu.free_drive.drives import Clock, Speed, Timeline, parse_speed, simulated
from benchmarks.gpu.free_drive.trials import Length, check, link, trial
from benchmarks.record import head, ratio, save, spread
from benchmarks.sampled import sampled
from benchmarks.table import short
from gdsload.system.units import parse_bytes

__all__ = ["main", "render"]

_BACKENDS = {"cuda": ("gds", "bounce"), "cpu": ("host",)}
_READS = {"4 KiB": 4096, "8 MiB": 2**23}
_NOTE = (
    "SIMULATED DRIVE: reads move no byte. Batches hold whatever their memory held, and cannot be compared; the same "
    "loaders with the same options were compared byte by byte over small real files, untimed."
)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    names = [case.name for backends in _BACKENDS.values() for case in cases_of(backends, KINDS)]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.free_drive", description="the loader over a simulated drive"
    )
    parser.add_argument("--out", type=Path, required=True, help="where the JSON record goes")
    parser.add_argument("--drive", default="free", help="free (reads return at once), or as 25GB/s,80us,256: its "
                        "bandwidth, latency, and how many reads it takes at once (default: free)")  # fmt: skip
    parser.add_argument("--cases", nargs="+", choices=names, metavar="CASE", help=", ".join(names))
    parser.add_argument("--drives", type=int, nargs="+", default=[1], metavar="N", help="each case over so many such "
                        "drives, shard i on drive i modulo N (default: 1)")  # fmt: skip
    parser.add_argument(
        "--one-queue", action="store_true", help="several drives once more, taken for one by the loader"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds-per-trial", type=float, default=0.4, help="timed seconds (default: 0.4)")
    parser.add_argument("--bytes", default="16GiB", help="of each kind of rows, all holes (default: 16GiB)")
    parser.add_argument("--device", default=device, help=f"cpu for the backend host (default here: {device})")
    parser.add_argument("--sampled", action="store_true", help="one more trial of each case, which tells at which "
                        "lines of gdsload its threads were")  # fmt: skip
    parser.add_argument("--small", action="store_true", help="a smoke test of kilobytes: its numbers mean nothing")
    parser.add_argument("--work-dir", type=existing_folder, help="where the files go (default: the temporary folder)")
    return parser.parse_args(arguments)


@dataclass(frozen=True, slots=True)
class _Run:
    """The settings that all trials of a run share.

    Attributes:
        folder: the folder of the files.
        device: the device of batches.
        speed: the speed of the simulated drive.
        clock: the clock that waits for it.
        length: the length of a trial.
    """

    folder: Path
    device: torch.device
    speed: Speed | None
    clock: Clock
    length: Length

    def write(self, cases: list[Case], nbytes: int) -> None:
        """Write the files of some cases."""
        for kind in {case.kind.name: case.kind for case in cases}.values():
            kind.write_real(self.folder / f"real-{kind.name}")
            kind.write_holes(self.folder / kind.name, nbytes)

    def check(self, case: Case) -> dict[str, Any]:
        """The entry of a case, its bytes compared."""
        entry = {"name": case.name, "title": case.title, "simulated_drive": True, "trials": []}
        try:
            entry["check"] = check(case, self.folder / f"real-{case.kind.name}", self.device)
            entry["drives"] = case.drives
        except Exception as error:
            entry["failed"] = {"stage": "check", "reason": f"{type(error).__name__}: {error}"[:500]}
        return entry

    def trial(self, case: Case, entry: dict[str, Any]) -> None:
        """Add a trial to an entry."""
        drive = simulated(self.speed, self.clock, self.device, case.drives, one_queue=case.one_queue)
        try:
            entry["trials"].append(trial(case, self.folder / case.kind.name, self.device, drive, self.length))
        except Exception as error:
            entry["failed"] = {"stage": "trial", "reason": f"{type(error).__name__}: {error}"[:500]}

    def sample(self, case: Case, entry: dict[str, Any]) -> None:
        """Add to an entry at which lines threads were in one more trial, which is slower for being looked at."""
        with sampled(Path(gdsload.__file__).parent) as found:
            self.trial(case, entry)
        if "failed" not in entry:
            entry["trials"].pop()  # its numbers are not those of a loader that is left alone
            entry["threads"] = found.lines()


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write the record; 1 if a case failed."""
    options = parse(arguments)
    speed, device, clock = parse_speed(options.drive), torch.device(options.device), Clock()
    every = cases_of(_BACKENDS[device.type], SMALL if options.small else KINDS)
    chosen = [case for case in every if not options.cases or case.name in options.cases]
    cases = [case.over(drives) for case in chosen for drives in options.drives]
    if options.one_queue:
        cases += [case.over(drives, one_queue=True) for case in chosen for drives in options.drives if drives > 1]
    length = Length(0.02 if options.small else options.seconds_per_trial)
    with tempfile.TemporaryDirectory(prefix="gdsload-bench-", dir=options.work_dir) as folder:
        run = _Run(Path(folder), device, speed, clock, length)
        run.write(cases, 2**19 if options.small else parse_bytes(options.bytes, "--bytes"))
        entries, links = _rounds(run, cases, options.rounds)
        for case, entry in zip(cases, entries, strict=True):
            if options.sampled and "failed" not in entry:
                run.sample(case, entry)
    record = {
        **head("benchmarks.gpu.free_drive", arguments, device),
        "simulated_drive": {"speed": options.drive, "note": _NOTE, **_model(speed, clock)},
        "small": options.small,
        "device": device.type,
        "rounds": options.rounds,
        "bytes": options.bytes,
        "link": {"trials": links, "gb_s": spread([each["gb_s"] for each in links])},
        "cases": entries,
    }
    print(render(record), end="")
    if options.sampled:
        _say(_threads(record))
    save(record, options.out)
    return 1 if any("failed" in entry for entry in entries) else 0


def _model(speed: Speed | None, clock: Clock) -> dict[str, Any]:
    """The read rates of the model under full load, and the lateness of this machine's timers."""
    found: dict[str, Any] = {"timer": clock.measured, "timer_corrected_by_us": clock.late_s * 1e6}
    if speed is not None:
        for name, nbytes in _READS.items():
            reads = np.full(100_000, nbytes)
            found[f"reads_s_of_{name}"] = len(reads) / Timeline(speed).many(0.0, reads)
    return found


def _rounds(run: _Run, cases: list[Case], rounds: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The entries of all cases, and the trials of the link, one a round."""
    entries = {}
    for case in cases:
        entries[case.name] = run.check(case)
        _say(f"{case.name}: {entries[case.name].get('failed', 'bytes compared')}")
    links = []
    for number in range(rounds):
        links.append(link(run.device, run.length.seconds))
        shift = number * len(cases) // rounds  # nobody is always the first, or the last
        for case in cases[shift:] + cases[:shift]:
            if "failed" not in entries[case.name]:
                run.trial(case, entries[case.name])
        _say(f"round {number + 1} of {rounds}")
    for entry in entries.values():
        if "failed" not in entry:
            for key in ("gb_s", "rows_s", "cpu_s_per_gb"):
                entry[key] = spread([each[key] for each in entry["trials"]])
            entry["of_p"] = ratio([each["gb_s"] for each in entry["trials"]], [each["gb_s"] for each in links])
    return list(entries.values()), links


def render(record: dict[str, Any]) -> str:
    """The table of a record."""
    where, drive, timer = record["machine"], record["simulated_drive"], record["simulated_drive"]["timer"]
    torch_version = record["versions"]["torch"]
    late = ", ".join(f"{about}: {found['late_us']:.0f}" for about, found in timer.items())
    copies = "pinned memory to the GPU" if record["device"] == "cuda" else "memory to memory, as there is no GPU"
    lines = [
        *(["Small: these numbers mean nothing."] if record["small"] else []),
        f"Simulated drive: {drive['speed']}. Reads move no byte; bytes were compared over small real files.",
        f"{where.get('gpu', where['cpu'])}, {where['cores']} cores, torch {torch_version}, {record['date'][:10]}.",
        f"P ({copies}): {_spread(record['link']['gb_s'], 1)} GB/s, in the same rounds.",
        f"A timer is late by, in µs, for a wait of {late}; corrected by {drive['timer_corrected_by_us']:.0f}.",
        *(
            f"The simulated drive itself: {drive[key] / 1e6:.3g} M reads/s of {name}, "
            f"{drive[key] * nbytes / 1e9:.3g} GB/s."
            for name, nbytes in _READS.items()
            if (key := f"reads_s_of_{name}") in drive
        ),
        f"Median (quartiles) of {record['rounds']} interleaved rounds.",
        "",
        "| the loader over a simulated drive | GB/s | rows/s | of P | CPU seconds a GB |",
        "| --- | --- | --- | --- | --- |",
    ]
    for entry in record["cases"]:
        if "failed" in entry:
            lines.append(f"| simulated drive, {entry['title']} | failed: {entry['failed']['reason'][:200]} | | | |")
            continue
        rows = {key: short(value) for key, value in entry["rows_s"].items()}
        cells = [
            f"simulated drive, {entry['title']}", _spread(entry["gb_s"], 2),
            f"{rows['median']} ({rows['q1']}–{rows['q3']})", _spread(entry["of_p"], 3),
            f"{entry['cpu_s_per_gb']['median']:.3f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _threads(record: dict[str, Any]) -> str:
    """At which lines threads were, of the cases that were looked at."""
    lines = []
    for entry in record["cases"]:
        for name, seen in entry.get("threads", {}).items():
            lines.append(f"{entry['title']}: threads called {name}, how many at a line at a time")
            lines += [f"{often:7.3f}  {line}" for line, often in seen.items()]
    return "\n".join(lines)


def _spread(found: dict[str, float], digits: int) -> str:
    return f"{found['median']:.{digits}f} ({found['q1']:.{digits}f}–{found['q3']:.{digits}f})"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
