"""The progress of a measurement."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress", "Steps"]

Progress = Callable[[str, int, int], None]
"""Called with a text on the present step, the trials that are done, and the number of trials. An error that it raises
ends the measurement."""


class Steps:
    """The trials of a measurement, counted.

    Args:
        trials: how many there are.
        progress: called for each; or None.
    """

    def __init__(self, trials: int, progress: Progress | None) -> None:
        self._of, self._progress = trials, progress
        self._done = self._end = 0
        self._state = ""

    def say(self, what: str) -> None:
        """Report a step that is no trial."""
        if self._progress is not None:
            self._progress(what, self._done, self._of)

    def begin(self, state: str, trials: int) -> None:
        """Begin with a number of trials; the rest of those before them is skipped."""
        self._done, self._end = self._end, self._end + trials
        self._state = state
        self.say(f"{state}, preparing")

    def trial(self) -> None:
        """Begin a trial."""
        self.say(f"{self._state}, trial {self._done + 1} of {self._of}")
        self._done += 1
