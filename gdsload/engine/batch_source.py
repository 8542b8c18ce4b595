"""The seam between the prefetcher and the ways that batches are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gdsload.errors import GdsloadError
from gdsload.system.failed import Failed

StepTransform = Callable[[int, Any], Any]
"""Turns the batch of a step into the one that is handed out."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Some batches, and the error that is raised instead of the one after them.

    A batch for which the user's transform raised an error, or whose samples differ from what was written, is `Failed`:
    the epoch goes on after it.
    """

    batches: list[Any]
    sizes: list[int]
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class PendingBatches:
    """Batches of consecutive steps that are being made.

    Attributes:
        landed: returns whether all their bytes have landed, so that `result` does not wait for a drive; never waits.
        result: waits for the bytes, makes the batches, and makes sure that the files are still those that were opened.
            It is called once, with a function that returns whether nobody wants the batches any more. It raises
            `ReadError` if bytes cannot be read, `FileChangedError` if a file has changed, `FormatError` if a file's
            content is damaged, and `BudgetError` if a device has no memory left.
        drop: releases what is held for them, after their reads have ended. After `result`, or twice, it does nothing.
    """

    landed: Callable[[], bool]
    result: Callable[[Callable[[], bool]], Ready]
    drop: Callable[[], object]


class BatchSource(Protocol):
    """Makes batches of an epoch, and holds nothing for later steps, unless a class says otherwise.

    One thread at a time calls `start`, `arena_bytes` and `close`.
    """

    takes_processor: bool
    """True if making batches keeps a processor busy; if not, the thread that makes them waits for a device."""

    def start(self, steps: range) -> PendingBatches:
        """Queue the reads or kernels that make the batches of consecutive steps; never waits for a drive.

        It is fastest for steps after those of the last call.

        Raises:
            GdsloadError: if that fails; nothing is held for these steps then.
        """

    def arena_bytes(self, steps: range, window_bytes: int) -> int:
        """Arena bytes held and those that `start` would take, where a window has so many; 0 if it would take none."""
        return 0

    def held_bytes(self) -> int:
        """Arena bytes held; any thread may ask."""
        return 0

    def hand_over(self, batches: Sequence[Any]) -> Callable[[Any], Any]:
        """The last step for each batch of a group, or for what a transform made of it.

        It is called with each of them in order, in the consumer's thread, and returns what the consumer gets.
        """

    def again(self) -> BatchSource:
        """A source that makes the same batches by the most general way, to find the batch that an error belongs to."""

    def close(self) -> None:
        """Release what is held for later steps."""


def identity(batch: Any) -> Any:
    """Return the batch: the `BatchSource.hand_over` where nothing is to be done."""
    return batch


def make_now(source: BatchSource, step: int, stopped: Callable[[], bool] = lambda: False) -> Ready:
    """The batch of one step. After an error, which may be any that `start` or `result` raises, nothing is held."""
    pending = source.start(range(step, step + 1))
    try:
        return pending.result(stopped)
    except Exception:
        pending.drop()
        raise


def transformed(
    transform: StepTransform | None,
    batches: list[Any],
    sizes: list[int],
    steps: range,
    stopped: Callable[[], bool] = lambda: False,
) -> Ready:
    """The batches of some steps after the user's transform, each of which may be `Failed`.

    The batches are removed from their list one by one, so that those are freed that have been replaced. An error of the
    library's, raised because it was closed or has lost a worker process, ends them instead.
    """
    if transform is None:
        return Ready(batches, sizes)
    made: list[Any] = []
    for step in steps:
        if stopped():
            break
        try:
            made.append(transform(step, batches.pop(0)))
        except KeyboardInterrupt:  # Ctrl-C of the consumer, whose thread happens to run this
            raise
        except GdsloadError as error:
            return Ready(made, sizes[: len(made)], error)
        except BaseException as error:  # of any kind: in a thread of the loader it would be lost
            made.append(Failed(error))
    return Ready(made, sizes[: len(made)])
