"""How far reads run ahead: more when the consumer has to wait for them, less when nobody has waited for long.

What is compared is how late reads land with how fast the consumer comes back, and so neither needs to be known. Growing
is quick, because a consumer is standing there; shrinking is slow, because what it saves is memory within a budget.
"""

from __future__ import annotations

__all__ = ["LEAST", "MOST", "Pace"]

LEAST = 4
"""Groups whose reads are under way before one is gathered: enough to keep the readers of a cold disk busy."""
MOST = 64
_WAITED_SHARE = 0.05
"""Share of the time between two groups below which the consumer is not said to have waited: threads change places."""
_CALM_GROUPS = 32
"""Groups in a row without a wait before the depth is lowered by one."""


class Pace:
    """The depth of reads, from what happens at the consumer's end. It knows no clock: it is told the time.

    Budgets are not its business: whoever starts reads stays within them, and counts no wait that a budget is the reason
    of. What is read, and in which order, does not depend on it.

    Args:
        depth: what to begin with; kept from `LEAST` to `MOST`.

    Attributes:
        depth: how many groups may have their reads under way before one is gathered.
    """

    def __init__(self, depth: int = LEAST) -> None:
        self.depth = min(max(depth, LEAST), MOST)
        self._before: float | None = None
        self._calm = 0
        self._old = 0  # groups still to come that say nothing of the depth, as it was lower when they were planned

    def taken(self, at: float, waited_s: float) -> None:
        """Note that the consumer took a group.

        Args:
            at: when, in seconds of any clock that goes forward.
            waited_s: for how long it had waited for reads that only the depth kept from being started earlier.
        """
        before, self._before = self._before, at
        if before is None:  # the first of an epoch: nothing can have been read ahead
            return
        self._old = max(self._old - 1, 0)
        if waited_s > _WAITED_SHARE * (at - before):
            self._calm = 0
            if not self._old:
                self._old = self.depth = min(2 * self.depth, MOST)  # the first reads at the new depth come late, too
            return
        self._calm += 1
        if self._calm == _CALM_GROUPS:
            self._calm = 0
            self.depth = max(self.depth - 1, LEAST)
