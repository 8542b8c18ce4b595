"""A measurement from begin to end, and its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

from gdsload.system.drive_rate import DriveRate, measure_drive
from gdsload.system.probe.mounts import IN_MEMORY
from gdsload.system.units import format_bytes
from gdsload.tools.bench.bench_plan import BY_HAND_EVERY, LEAST_BATCHES, BenchPlan, empty_record
from gdsload.tools.bench.by_hand import StoredRows
from gdsload.tools.bench.cache_state import drop, fill, look, who_maps, why_blind
from gdsload.tools.bench.check import check_row
from gdsload.tools.bench.facts import Facts, State
from gdsload.tools.bench.limits import drive_limit, link_limit, memory_limit, shown
from gdsload.tools.bench.rows import ControlRow, LoaderRow, Row, make_rows, size_of, synchronise
from gdsload.tools.bench.summary import noise_of, summary
from gdsload.tools.bench.turns import Warm, late_samples, run_turn, settle

Progress = Callable[[str, float, float], None]
"""Called with a text on the present step, the seconds that have passed, and those that all of it is likely to take. An
error that it raises ends the measurement, KeyboardInterrupt with a record."""

_EPOCHS = 3
_FILL = 3
"""The part of all time that filling the page cache may take: a third."""
_OVER = 1.25
"""Share of its time by which a state may be late: a round less is a worse measurement."""
_AGAIN_S = 0.3
"""Seconds for which the drive is measured again in each round: what it gives changes on shared machines."""


def run_bench(plan: BenchPlan, *, progress: Progress | None = None) -> dict[str, Any]:
    """Compare bytes, then measure. Ctrl-C ends it with what has been measured by then.

    It starts processes for torch's loader: a script calls it below ``if __name__ == "__main__":``.

    Returns:
        The record: plain dicts, lists, numbers and texts. ``cold`` and ``hot`` are None if not asked for, or if they
        were not begun; if that state of the cache was not possible, they have no rows, and ``state`` has the reason.
        ``stopped`` tells after how many turns Ctrl-C or SIGTERM came.

    Raises:
        ReadError: if a row hands out wrong bytes, or a file cannot be read.
        BackendUnavailableError: if no backend can be used.
    """
    with ExitStack() as stack:
        bench = _Bench(plan, progress, stack)
        try:
            bench.run()
        except KeyboardInterrupt as error:
            by = "Ctrl-C" if type(error) is KeyboardInterrupt else "SIGTERM"
            bench.record["stopped"] = f"by {by} after {bench.done} of {bench.of} turns"
        return bench.finished()


class _RefusedError(Exception):
    """The page cache cannot be in the state that turns are to begin in, and why."""


class _Bench:
    """A measurement that runs."""

    def __init__(self, plan: BenchPlan, progress: Progress | None, stack: ExitStack) -> None:
        self.plan, self._progress, self._stack = plan, progress, stack
        self.done, self.of = 0, 1
        self._drive: DriveRate | None = None
        self._again: list[float] = []
        self._begun = time.monotonic()
        self._rounds: dict[State, list[list[Row]]] = {}
        self._taken: dict[State, dict[Row, list[tuple[dict[str, Any], list[float]]]]] = {}
        self.record = empty_record(plan)

    def run(self) -> None:
        """Measure everything."""
        plan, record = self.plan, self.record
        self._say("finding read paths")
        cold, hot, record["conditions"]["unavailable"] = make_rows(plan)
        every = list(dict.fromkeys([*cold, *hot]))
        for row in every:
            self._stack.callback(row.close)
        states: dict[State, list[Row]] = {}
        if plan.cold:
            states["cold"] = cold
        if plan.hot:
            states["hot"] = hot
        self._rounds = {name: rounds(rows, plan.turns) for name, rows in states.items()}
        self.of = sum(map(_turns, self._rounds.values()))
        for row in {row.name: row for row in every}.values():
            if not isinstance(row, ControlRow):
                self._say(f"comparing bytes: {row.name}")
                record["verified"].append(check_row(row, plan))
        for row in every:
            if row.maps:  # pages that a loader has registered stay in the page cache
                row.close()
        self._limits()
        for name, rows in states.items():
            self._state(name, rows)

    def _say(self, what: str) -> None:
        if self._progress is not None:
            took_s = time.monotonic() - self._begun
            self._progress(what, took_s, max(took_s, self.plan.whole_s))

    def _limits(self) -> None:
        self._say("limits of the machine")
        limits, plan = self.record["limits"], self.plan
        limits["link"] = link_limit(plan.device, plan.limit_s / 10)
        limits["memory"] = memory_limit(plan.limit_s / 10)
        self._drive, why = drive_limit(plan)
        limits["drive_why"] = why or None
        if self._drive is None:
            return
        if plan.budget_s is not None:
            # Of a slow drive, fewer turns with enough batches tell more.
            enough_s = 2 * LEAST_BATCHES * plan.batch_size * plan.sample_bytes / 1e9 / self._drive.gb_per_s
            self.plan = replace(plan, turn_s=max(plan.turn_s, min(enough_s, 2 * plan.turn_s)))
            self.record["conditions"]["turn_s"] = self.plan.turn_s

    def _state(self, name: State, rows: list[Row]) -> None:
        """The turns of one state of the page cache."""
        taken = self._taken[name] = {row: [] for row in rows}
        end = self.done + _turns(self._rounds[name])
        self._say(f"{name}, preparing")
        try:
            if blind := why_blind(self.plan.files):
                raise _RefusedError(blind)
            self.record[name] = {"state": name, "checked": "", "rows": []}
            self.record[name]["checked"] = self._cold() if name == "cold" else self._hot(rows)
        except _RefusedError as why:
            self.record[name] = {"state": f"not {name}: {why}", "checked": "", "rows": []}
            taken.clear()
            self.done = end

    def _take(self, name: State, turn: int, row: Row, prepare: Callable[[int], Warm] | None) -> None:
        self._say(f"{name}, turn {self.done + 1} of {self.of}: {row.name}")
        found = run_turn(row, self.plan if prepare else self.plan.of_hot_turns(), turn, prepare)
        self._taken[name][row].append(found)
        self.done += 1

    def _begun_rounds(self, name: State) -> Iterator[tuple[int, list[Row]]]:
        """The rounds of a state, as many as the budget has room for."""
        plan, left, every = self.plan, float("inf"), self._rounds[name]
        if plan.budget_s is not None:
            left = self._begun + plan.budget_s - time.monotonic()
            left *= plan.state_s(cold=True) / plan.turns_s if name == "cold" else 1
        until = time.monotonic() + left * _OVER
        for turn, rows in enumerate(every):
            if turn and time.monotonic() > until:
                note = f"{name}: the budget of {plan.budget_s:.3g} s was over after {turn} of {plan.turns} turns"
                self.record["conditions"]["notes"].append(note)
                self.of -= _turns(every[turn:])
                return
            yield turn, rows

    def _cold(self) -> str:
        most = self._drop()
        self._cold_start()
        stored = StoredRows(self.plan.path)
        self._stack.callback(stored.close)

        def prepare(epoch: int) -> Warm:
            nonlocal most
            warm = late_samples(self.plan, stored, epoch)
            most = max(most, self._drop())
            return warm

        for turn, rows in self._begun_rounds("cold"):
            if self._drive is not None:
                depth = self._drive.threads, self._drive.depth // self._drive.threads
                again_s = min(_AGAIN_S, self.plan.turn_s)
                found = measure_drive(self.plan.files, self._drive.read_bytes, again_s, (depth,), in_order=())
                self._again.append(found.gb_per_s)
            for row in rows:
                self._take("cold", turn, row, prepare)
                if row.maps:
                    row.close()
        return f"at most {most:.2%} of the pages in the page cache, by mincore, before each part of a turn"

    def _drop(self) -> float:
        """Drop the shards from the page cache; returns the share of their pages that has stayed."""
        found = drop(self.plan.files)
        if found.cold:
            return found.share
        why = "another process maps, reads or writes the files, or the file system keeps them in memory"
        if who := who_maps(self.plan.files):
            why = f"another process maps the files ({who})"
        elif (kind := self.record["dataset"]["file_system"]) in IN_MEMORY:
            why = f"a {kind} keeps its files only in memory"
        raise _RefusedError(f"{found}, after they were dropped: {why}")

    def _cold_start(self) -> None:
        """Three epochs of a new loader with default options, if there is time for them."""
        plan, record = self.plan, self.record
        most_s = plan.whole_s / 10
        about_s = plan.dataset.num_bytes / 1e9 / self._drive.gb_per_s if self._drive else 0.0
        self._say("cold start")
        epochs = [] if about_s > most_s else list(_epochs(plan, most_s))
        if len(epochs) < _EPOCHS:
            note = f"the cold start was not measured: three epochs take more than {most_s:.3g} s of the budget"
            record["conditions"]["notes"].append(note)
        else:
            record["cold_start"] = {"state": "cold", "epochs": epochs}

    def _hot(self, rows: Sequence[Row]) -> str:
        data, plan = self.record["dataset"], self.plan
        if not data["fits_memory"] and data["file_system"] not in IN_MEMORY:
            room = f"{format_bytes(data['memory_bytes'])} of memory are available"
            raise _RefusedError(f"the dataset has {format_bytes(data['bytes'])}, and {room}")
        about_s = data["bytes"] / 1e9 / self._drive.sequential_gb_per_s if self._drive else 0.0
        if about_s > plan.whole_s / _FILL and not look(plan.files).hot:
            takes = f"about {about_s:.0f} s to read, of {plan.whole_s:.0f} s in all"
            raise _RefusedError(f"the dataset takes {takes}; pass a larger --budget, or --cold-only")
        if not (found := fill(plan.files)).hot:
            raise _RefusedError(f"{found}, after they were read")
        self._say("hot, warm-up epochs")
        for row in rows:
            if isinstance(row, LoaderRow):  # others read as they always do
                settle(row, plan, plan.limit_s if plan.on_device else plan.ramp_s)
        for turn, some in self._begun_rounds("hot"):
            for row in some:
                self._take("hot", turn, row, None)
        found = look(plan.files)
        if not found.hot:
            raise _RefusedError(f"{found}, after the last turn")
        return f"{found}, after the last turn"

    def finished(self) -> dict[str, Any]:
        """The record, of the turns that were taken."""
        limits = self.record["limits"]
        if self._drive is not None:
            limits["drive"] = shown(self._drive, self._again)
        limits["noise"] = {"cold": None, "hot": None}
        for name, taken in self._taken.items():
            if (state := self.record[name]) is not None:
                limit, cold = Facts(self.record).ceiling(name), name == "cold"
                state["rows"] = [summary(row, turns, limit, cold=cold) for row, turns in taken.items() if turns]
                limits["noise"][name] = noise_of(state["rows"])
        return self.record


def _epochs(plan: BenchPlan, most_s: float) -> Iterator[dict[str, float]]:
    """The first epochs of a new loader, as long as they take no more than so many seconds in all."""
    begun = time.perf_counter()
    with closing(LoaderRow(plan, "auto")) as row:
        for number in range(_EPOCHS):
            started, first_s, nbytes = time.perf_counter(), 0.0, 0
            with closing(row.epoch(number)) as batches:
                for batch in batches:
                    if not first_s:
                        synchronise(plan.device)
                        first_s = time.perf_counter() - started
                    nbytes += size_of(batch)[1]
                    if time.perf_counter() - begun > most_s:
                        return
            synchronise(plan.device)
            seconds = time.perf_counter() - started
            yield {"seconds": seconds, "gb_per_s": nbytes / seconds / 1e9, "first_batch_s": first_s}


def rounds(rows: Sequence[Row], turns: int) -> list[list[Row]]:
    """The rows of each round, which begins with the next one; in two of three, only those that a verdict compares."""
    own, found = [row for row in rows if isinstance(row, LoaderRow)], []
    for number in range(turns):
        some = own if number % BY_HAND_EVERY else list(rows)
        first = number % len(some)
        found.append([*some[first:], *some[:first]])
    return found


def _turns(found: Sequence[Sequence[Row]]) -> int:
    return sum(map(len, found))
