"""The texts of a benchmark's report, for the terminal and the HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gdsload.system.units import counted, format_bytes
from gdsload.tools.bench.compare import EQUAL
from gdsload.tools.bench.facts import STATES, Facts, Row, State, figure, percent, rate, thousands
from gdsload.tools.cli.terminal import elapsed

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Those with a higher `spare` are left out first where space is short; 0: never."""

    title: str
    cells: tuple[str, ...]
    spare: int


def conditions(record: Record) -> dict[str, str]:
    """The dataset, the machine and the conditions of the measurement, one line each."""
    dataset, given, machine = record["dataset"], record["conditions"], record["machine"]
    size = f"{dataset['samples']:,}".replace(",", " ") + f" samples, {format_bytes(dataset['bytes'])}"
    drive = f" on {dataset['drive']}" if dataset.get("drive") else ""
    cores = f"{counted(machine['cores'], 'core')}, {format_bytes(machine['ram_bytes'])}, Linux {machine['kernel']}"
    taken = [len(row["turns"]) for state in STATES for row in shown_rows(record, state) if row["kind"] == "gdsload"]
    lengths = {"cold": given["turn_s"], "hot": given["hot_turn_s"]}
    each = ", ".join(f"{figure(lengths[state])} s {state}" for state in STATES if record[state] is not None)
    turns = f"{counted(given['turns'], 'turn')} of {each or 'no row'}"
    if taken and min(taken) < given["turns"]:
        turns = f"{min(taken)} of {turns}"
    batch = f"batches of {given['batch_size']} ({format_bytes(given['batch_bytes'])}), shuffle {given['shuffle']}"
    found = {
        "dataset": f"{dataset['path']}: {size}, {counted(dataset['shards'], 'shard')}, {dataset['file_system']}{drive}",
        "machine": f"{machine['gpu'] or 'no GPU'}; {machine['cpu']}, {cores}",
        "measured": f"{turns}, interleaved; {batch}, to {given['device']}",
        "versions": ", ".join(f"{name} {version}" for name, version in record["versions"].items()),
    }
    checked = record["verified"]
    if checked:
        fewest = min(entry["samples"] for entry in checked)
        found["bytes"] = f"{counted(fewest, 'sample')} of every row compared with the dataset: equal"
    if record.get("stopped"):
        found["stopped"] = str(record["stopped"])
    return found


def limits(record: Record) -> list[tuple[str, str, str]]:
    """The limits of the machine: name, throughput, and a remark."""
    found, known = [], record["limits"]
    drive, link, memory = known.get("drive"), known.get("link"), known.get("memory")
    if drive:
        order = "random" if record["conditions"]["shuffle"] == "full" else "in order"
        remarks = [f"p99 {figure(drive['p99_ms'])} ms"] if drive.get("p99_ms") is not None else []
        if drive.get("sequential_gb_per_s") is not None:
            remarks.append(f"sequential {figure(drive['sequential_gb_per_s'])}")
        name = f"drive, {format_bytes(drive['read_bytes'])} {order}"
        remarks.append(str(drive["from"]))
        found.append((name, f"{figure(drive['gb_per_s'])} GB/s", ", ".join(remarks)))
    elif known.get("drive_why"):
        found.append(("drive", "–", str(known["drive_why"])))
    if link:
        found.append(("link, pinned memory to GPU", f"{figure(link['gb_per_s'])} GB/s", ""))
    if memory:
        found.append(("memory, one copy, all cores", f"{figure(memory['gb_per_s'])} GB/s", ""))
    state = Facts(record).decisive
    noise = Facts(record).noise(state)
    if noise is not None:
        remark = f"differences below {percent(max(EQUAL, 2 * noise))} count as equal"
        if noise > EQUAL and record["machine"].get("load") is not None:
            remark = f"load {figure(record['machine']['load'])} on {counted(record['machine']['cores'], 'core')}"
        found.append((f"noise: the same row twice, {state}", f"± {percent(noise)}", remark))
    return found


def cold_start(record: Record) -> list[tuple[str, str, str]]:
    """The epochs of a new loader: name, throughput, and a remark."""
    found = record.get("cold_start") or {}
    return [
        (
            f"epoch {number}" + (", cold" if number == 1 else ""),
            f"{figure(epoch['gb_per_s'])} GB/s",
            f"{figure(epoch['seconds'])} s, first batch after {elapsed(epoch['first_batch_s'])}",
        )
        for number, epoch in enumerate(found.get("epochs", ()), 1)
    ]


def shown_rows(record: Record, state: State) -> list[Row]:
    """The rows of a table, the fastest first, without the control."""
    found = (record[state] or {}).get("rows", ())
    return sorted((row for row in found if row["kind"] != "control" and row["turns"]), key=rate, reverse=True)


def missing(record: Record, state: State) -> str:
    """The reason why a table has no rows."""
    found = str(record[state]["state"])
    return found if found != state else f"stopped {record['stopped']}" if record["stopped"] else "no row had a turn"


def columns(record: Record, state: State) -> list[Column]:
    """The columns of the table for a state of the page cache; the first three are names, rates and their spread."""
    rows, ceiling = shown_rows(record, state), Facts(record).ceiling(state)

    def column(title: str, spare: int, cell: Callable[[Row], str]) -> Column:
        return Column(title, tuple(map(cell, rows)), spare)

    found = [column("", 0, lambda row: str(row["name"])), column("GB/s", 0, lambda row: figure(rate(row)))]
    found.append(column("spread", 2, lambda row: percent(_spread(row))))
    if ceiling:
        found.append(column(f"of {ceiling[0]}", 1, lambda row: percent(row["share_of_limit"])))
    found += [
        column("samples/s", 7, lambda row: thousands(row["samples_per_s"])),
        column("p50 ms", 6, lambda row: figure((row["batch_ms"] or {}).get("p50"))),
        column("p99 ms", 3, lambda row: figure((row["batch_ms"] or {}).get("p99"))),
        column("CPU-s/GB", 4, lambda row: figure(row["cpu_s_per_gb"])),
        column("from drive", 5, lambda row: percent(row["drive_share"])),
    ]
    return found


def bar_shares(record: Record, state: State) -> list[float]:
    """The length of each row's bar, as a share of the limit, or of the fastest row where that is above it."""
    rates, ceiling = [rate(row) for row in shown_rows(record, state)], Facts(record).ceiling(state)
    longest = max([*rates, ceiling[1] if ceiling else 0.0], default=0.0)
    return [found / longest if longest else 0.0 for found in rates]


def remarks(record: Record, state: State) -> Iterator[str]:
    """Sentences below a table: the method of a row, the paths of its bytes by counters, and warnings."""
    rows = shown_rows(record, state)
    for row in rows:
        if row["kind"] != "gdsload" and row.get("detail"):
            yield f"{row['name']}: {row['detail']}"
    paths = []
    for row in rows:
        moved = {path: count for path, count in (row.get("bytes_by_path") or {}).items() if count}
        shares = ", ".join(f"{path} {percent(count / sum(moved.values()))}" for path, count in moved.items())
        paths += [f"{row['name']} {shares}"] if moved else []
    if paths:
        yield f"bytes by path, from counters: {'; '.join(paths)}"
    for row in rows:
        if row.get("warning"):
            yield f"warning: {row['name']}: {row['warning']}"


def notes(record: Record) -> list[str]:
    """The rows that were left out, and notes on all numbers."""
    given = record["conditions"]
    left_out = given.get("unavailable", {}).items()
    return [*(f"{name} was not measured: {why}" for name, why in left_out), *given["notes"]]


def answers(record: Record) -> list[tuple[str, str]]:
    """The verdict below its first sentence: labels and texts."""
    found = record["verdict"]
    loading = " ".join(filter(None, (found["loading"]["sentence"], found["loading"]["do"])))
    labelled = [
        ("Why", found["why"]), ("Saves", found["saves"]), ("Do", found["do"]), ("Else", found["otherwise"]),
        ("Loading", loading),
    ]  # fmt: skip
    return [(label, text) for label, text in labelled if text]


def _spread(row: Row) -> float | None:
    """Half of what is between the quartiles of the turns' rates, as a share of the median; None for one turn."""
    quartiles = row["gb_per_s"]
    return (quartiles["q3"] - quartiles["q1"]) / 2 / rate(row) if len(row["turns"]) > 1 and rate(row) else None
