"""The facts of a record that a verdict rests on, and numbers as people read them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from gdsload.tools.bench.compare import Comparison, compare

Row = dict[str, Any]
State = Literal["cold", "hot"]
Limit = Literal["drive", "link", "memory"]
STATES: tuple[State, ...] = ("cold", "hot")


def rate(row: Row) -> float:
    """The median rate of a row, in GB/s."""
    return float(row["gb_per_s"]["median"])


@dataclass(frozen=True, slots=True)
class Facts:
    """A record of `run_bench`, asked."""

    record: dict[str, Any]

    @property
    def on_gpu(self) -> bool:
        """True if batches went to a GPU of CUDA's, the only ones that cuFile can read into."""
        cuda = self.record["versions"].get("cuda", "none") != "none"  # else it is ROCm that calls its devices so
        return cuda and str(self.record["conditions"]["device"]).startswith("cuda")

    @property
    def fits_memory(self) -> bool:
        """True if the page cache can hold the dataset, so that only the first epoch is cold."""
        return bool(self.record["dataset"]["fits_memory"])

    @property
    def cores(self) -> int:
        """Processors that the benchmark could use."""
        return int(self.record["machine"]["cores"])

    @property
    def decisive(self) -> State:
        """The state of the page cache that an answer rests on: GDS is about the drive, if that was measured."""
        return "hot" if self.rows("hot") and not self.rows("cold") else "cold"

    def rows(self, state: State) -> list[Row]:
        """The loader's own rows, without the control."""
        found = (self.record[state] or {}).get("rows", ())
        return [row for row in found if row["kind"] == "gdsload" and row["turns"] and rate(row) > 0]

    def row(self, state: State, backend: str) -> Row | None:
        """The row of a backend, if it was measured."""
        return next((row for row in self.rows(state) if row["name"] == backend), None)

    def best(self, state: State, *, but: str = "") -> Row | None:
        """The fastest row of the loader's, leaving out one backend's."""
        return max((row for row in self.rows(state) if row["name"] != but), key=rate, default=None)

    def chosen(self, state: State) -> Row | None:
        """The row that `backend="auto"` uses, or the fastest one if that was not measured."""
        return next((row for row in self.rows(state) if "auto" in row["asked"]), self.best(state))

    def refusal(self, state: State) -> str:
        """The reason why this state of the page cache could not be had; empty if it could, or was not asked for."""
        found = str((self.record[state] or {}).get("state", state))
        return "" if found == state else found.partition(": ")[2] or found

    def noise(self, state: State) -> float | None:
        """The share by which the same row, measured twice, differs; None if that is not known."""
        found = (self.record["limits"].get("noise") or {}).get(state)
        return None if found is None else float(found)

    def limit(self, name: Limit) -> float | None:
        """The rate of the drive, the link or one copy in memory, in GB/s; None if it is not known."""
        found = self.record["limits"].get(name)
        return float(found["gb_per_s"]) if found else None

    def ceiling(self, state: State) -> tuple[str, float] | None:
        """The limit of a state's rows, by name, and its rate in GB/s; None if it is not known.

        It is the drive or the link, the lower of them, where the page cache is cold, else link or memory.
        """
        if state == "hot":
            names: tuple[Limit, ...] = ("link",) if self.limit("link") else ("memory",)
        else:
            names = ("drive", "link") if self.limit("drive") else ()
        found = {name: most for name in names if (most := self.limit(name)) is not None}
        return min(found.items(), key=lambda one: one[1], default=None)

    def limited_by(self, state: State) -> str | None:
        """The name of what limits the row that `auto` uses: "drive", "link", "memory", or "loader" if none does."""
        row, ceiling = self.chosen(state), self.ceiling(state)
        if row is None or ceiling is None:
            return None
        return ceiling[0] if rate(row) >= 0.9 * ceiling[1] else "loader"


def compared(ours: Row, theirs: Row) -> Comparison:
    """Two rows, turn by turn."""
    return compare([turn["gb_per_s"] for turn in ours["turns"]], [turn["gb_per_s"] for turn in theirs["turns"]])


def saved(row: Row, other: Row) -> float | None:
    """CPU seconds a GB that a row takes less than another one; None if that is not known."""
    known = row["cpu_s_per_gb"] is not None and other["cpu_s_per_gb"] is not None
    return float(other["cpu_s_per_gb"] - row["cpu_s_per_gb"]) if known else None


def cores_saved(row: Row, other: Row) -> float:
    """Cores that are busy with another row, and are not at this one's rate; 0 if that is not known."""
    return (saved(row, other) or 0.0) * rate(row)


def figure(number: float | None) -> str:
    """Two or three digits: ``"0.057"``, ``"2.3"``, ``"11.6"``, ``"347"``; a dash where nothing is known."""
    if number is None or not math.isfinite(number):
        return "–"
    if not number:
        return "0"
    digits = 1 - math.floor(math.log10(abs(number)) + 1e-9)
    return f"{number:.{1 if 9.95 <= abs(number) < 99.95 else max(digits, 0)}f}"


def percent(share: float | None) -> str:
    """``"97 %"``; one digit more below 2 %."""
    if share is None or not math.isfinite(share):
        return "–"
    return f"{100 * share:.1f} %" if 0.0005 <= abs(share) < 0.0195 else f"{100 * share:.0f} %"


def gain_text(gain: float) -> str:
    """``"+65 %"``, ``"-12 %"``, and from twice as much on ``"2.6 times"``."""
    return f"{figure(1 + gain)} times" if gain >= 1 else f"{100 * gain:+.0f} %"


def thousands(number: float | None) -> str:
    """``"77 000"``: three digits of it, in groups of three."""
    if number is None or not math.isfinite(number):
        return "–"
    digits = 3 - len(str(round(number)))
    return f"{round(number, min(digits, 0)):,.0f}".replace(",", " ")
