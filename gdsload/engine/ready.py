"""Batches that are there, as the user's transforms leave them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Deliverer", "Ready", "StepTransform", "transformed"]

StepTransform = Callable[[int, Any], Any]
"""What is made of the batch of a step."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Some batches, and the error that stands in the place of the one behind them."""

    batches: list[Any]
    sizes: list[int]
    error: BaseException | None = None


class Deliverer(Protocol):
    """What delivers the batches of one epoch, in order. It has no thread before `start`."""

    def start(self) -> None:
        """Begin to read ahead, if it has threads for that.

        Raises:
            RuntimeError: if the system has no further thread.
        """

    def get(self) -> Ready | None:
        """The next batches, or None at the end of the epoch. Waits for them, or makes them.

        Raises:
            LoaderClosedError: if it was closed.
        """

    def hand_over(self, batch: Any) -> Any:
        """The last step of each batch, in the consumer's thread."""

    @property
    def stopped(self) -> bool:
        """Whether it was closed or stopped."""

    def stop(self) -> None:
        """Ask for the epoch's end, and wait for nothing: all that a finaliser may do, which can run in any thread."""

    def close(self) -> None:
        """End the epoch; when it returns, nothing is read any more. May be called twice and from any thread."""


def transformed(
    transform: StepTransform | None,
    batches: list[Any],
    sizes: list[int],
    steps: range,
    stopped: Callable[[], bool] = lambda: False,
) -> Ready:
    """What the user's transform makes of some steps' batches, as far as it goes.

    Args:
        transform: called for each batch in turn; None: they stay as they are.
        batches: taken out one by one, so that each goes when it has been replaced.
        sizes: number of samples of each.
        steps: their steps.
        stopped: whether nobody wants them any more.
    """
    if transform is None:
        return Ready(batches, sizes)
    made: list[Any] = []
    try:
        for step in steps:
            if stopped():
                break
            made.append(transform(step, batches.pop(0)))
    except KeyboardInterrupt:  # it is the consumer's, who happens to do this
        raise
    except BaseException as error:  # whatever it is: in a thread of ours it would be lost
        return Ready(made, sizes[: len(made)], error)
    return Ready(made, sizes[: len(made)])
