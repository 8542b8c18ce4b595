"""The depth of reads ahead: more when the consumer has to wait for them, less when nobody has waited for long.

Whether the consumer waited shows how the latency of reads compares with its speed, so neither needs to be measured. The
depth grows quickly, because the consumer is waiting; it shrinks slowly, because that only saves memory within a budget.
"""

from __future__ import annotations

LEAST = 4
"""Groups whose reads are under way before one is gathered: enough to keep the readers of a cold disk busy."""
MOST = 64
_WAITED_SHARE = 0.05
"""Share of the time between two groups below which a wait does not count: switching threads takes that long."""
_CALM_GROUPS = 32
"""Groups in a row without a wait before the depth is lowered by one."""


class Pace:
    """The depth of reads, from how long the consumer waits. It reads no clock: it is given the time.

    It knows no budgets: the caller stays within them, and reports no wait that is caused by a budget. What is read, and
    in which order, does not depend on it.

    Attributes:
        depth: how many groups may have their reads under way before one is gathered.
    """

    def __init__(self, depth: int = LEAST) -> None:
        self.depth = min(max(depth, LEAST), MOST)
        self._before: float | None = None
        self._calm = 0
        self._old = 0  # groups still to come that were planned at a lower depth, and so say nothing of this one

    def taken(self, at: float, waited_s: float) -> None:
        """Note that the consumer took a group, at a time in seconds, and how long only the depth made it wait."""
        before, self._before = self._before, at
        if before is None:  # the first of an epoch: nothing can have been read ahead
            return
        self._old = max(self._old - 1, 0)
        if waited_s > _WAITED_SHARE * (at - before):
            self._calm = 0
            if not self._old:
                self._old = self.depth = min(2 * self.depth, MOST)  # the first reads at the new depth are late, too
            return
        self._calm += 1
        if self._calm == _CALM_GROUPS:
            self._calm = 0
            self.depth = max(self.depth - 1, LEAST)
