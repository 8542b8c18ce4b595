"""Windows of lanes, as steps take samples from them: opened where a step needs them first, held while it has more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from gdsload.order import LanePieces, Schedule
from gdsload.system.arrays import IntArray

__all__ = ["LaneWindow", "LaneWindows"]


class _Part(Protocol):
    """Samples that were taken out of a window."""

    def drop(self) -> None:
        """Note that they are not wanted."""


Part = TypeVar("Part", bound=_Part)


@dataclass(slots=True)
class LaneWindow(Generic[Part]):
    """This rank's part of the window of a lane, which is handed out in turn.

    Attributes:
        count: its samples.
        stop: the lane position after its last.
        cursor: how many of them were handed out.
    """

    count: int
    stop: int
    cursor: int = 0

    def take(self, stop: int) -> Part:
        """Its samples up to `stop` that were not handed out yet; it has been read."""
        raise NotImplementedError

    def let_go(self) -> None:
        """Release what was not handed out."""
        raise NotImplementedError


Window = TypeVar("Window", bound=LaneWindow[Any])


class LaneWindows(Generic[Window, Part]):
    """The windows that steps take samples from.

    Args:
        schedule: which lane positions each step takes.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._held: dict[int, Window] = {}
        self._opening: list[Window] = []  # those that the call being made has opened, however far it has got
        self._behind: int | None = None  # the step after the last ones that samples were taken for
        self._asked: tuple[range, LanePieces] | None = None

    def opens(self, steps: range) -> int:
        """How many windows `take` would have to read for these steps, in addition to those it holds then.

        0 for steps that do not follow the last ones: if the steps before are made without windows, so are these.
        """
        if steps.start != self._behind:
            return 0
        pieces, held = self.pieces(steps), self._held
        reached = dict(zip(pieces.lane.tolist(), pieces.stop.tolist(), strict=True))
        return sum(lane not in held or stop > held[lane].stop for lane, stop in reached.items())

    def pieces(self, steps: range) -> LanePieces:
        """The lane positions of some steps: kept, as they are wanted by `opens` and by `take`."""
        if self._asked is None or self._asked[0] != steps:
            self._asked = steps, self._schedule.pieces(steps)
        return self._asked[1]

    def take(
        self, steps: range, opened: Callable[[int, int, int], Window], read: Callable[[list[Window]], None]
    ) -> list[Part]:
        """What the samples of some steps are, lane by lane, and of each lane window by window.

        If it fails, nothing is held for any step, and the next call reads windows anew.

        Args:
            steps: consecutive steps, best those after the ones of the last call: if some were left out in between,
                their windows are read anew.
            opened: this rank's part of the window of a lane that holds a position, from there on; given are a step
                before which no rank gets any of it, the lane and the position.
            read: starts reading some windows together.
        """
        if steps.start != self._behind:
            self.let_go()
        self._behind = steps.stop
        parts: list[Part] = []
        try:
            taken = self._opened(self.pieces(steps), opened)
            # Windows of one length together, as they are used up at about the same time: memory is released when all of
            # them are, and what would be held longest is the shortest.
            alike: dict[int, list[Window]] = {}
            for window in self._opening:
                alike.setdefault(window.count, []).append(window)
            for some in alike.values():
                read(some)
            for lane, window, stop in taken:
                parts.append(window.take(stop))
                self._held[lane] = window
            self._opening = []
        except BaseException:
            self._behind = None
            for part in parts:
                part.drop()
            self.let_go()
            raise
        return parts

    def let_go(self) -> None:
        """Release what is left of the windows held: the next step wanted is not the one after the last call's."""
        windows = [*self._held.values(), *self._opening]
        self._held, self._opening = {}, []
        for window in windows:
            window.let_go()

    def _opened(self, pieces: LanePieces, opened: Callable[[int, int, int], Window]) -> list[tuple[int, Window, int]]:
        """What has to be taken for some pieces, lane by lane: of which lane, which window, and up to where."""
        by_lane = np.argsort(pieces.lane, kind="stable")
        lanes, counts = pieces.lane[by_lane], (pieces.stop - pieces.start)[by_lane]
        edges = np.flatnonzero(np.diff(lanes, prepend=-1))
        if not len(edges):
            return []
        totals = np.add.reduceat(counts, edges).tolist()
        taken: list[tuple[int, Window, int]] = []
        for lane, total, low, high in zip(
            lanes[edges].tolist(), totals, edges.tolist(), [*edges[1:].tolist(), len(lanes)], strict=True
        ):
            window = self._held.get(lane)
            if window is not None and total <= window.count - window.cursor:
                taken.append((lane, window, window.cursor + total))
            else:
                taken += [(lane, *each) for each in self._several(window, pieces, by_lane[low:high], opened)]
        return taken

    def _several(
        self, window: Window | None, pieces: LanePieces, mine: IntArray, opened: Callable[[int, int, int], Window]
    ) -> Iterator[tuple[Window, int]]:
        """The same for pieces of one lane, of which the window that is held, if one is, has not all."""
        lane, ends = int(pieces.lane[mine[0]]), np.cumsum(pieces.stop[mine] - pieces.start[mine])
        done, total = 0, int(ends[-1])
        cursor = window.cursor if window else 0
        while done < total:
            if window is None or cursor == window.count:
                piece = int(np.searchsorted(ends, done, side="right"))
                position = int(pieces.stop[mine[piece]] - ends[piece]) + done
                window, cursor = opened(int(pieces.step[mine[piece]]), lane, position), 0
                self._opening.append(window)
            count = min(total - done, window.count - cursor)
            done, cursor = done + count, cursor + count
            yield window, cursor
