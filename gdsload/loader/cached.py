"""The first batches of a loader, again and again: how fast training would be if loading cost nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from itertools import cycle, islice
from typing import Any

from gdsload.errors import OptionError
from gdsload.order.checks import check_whole


class Cached:
    """See `cached`."""

    def __init__(self, loader: Any, batches: int = 8) -> None:
        if not isinstance(loader, Sized):
            raise OptionError("has no length, so an epoch would have no end", option="loader")
        self._most = check_whole(batches, "batches", 1)
        self._loader: Any = loader
        self._batches: list[Any] = []

    def __len__(self) -> int:
        """As ``len(loader)``."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """One epoch."""
        if not self._batches:
            self._batches = list(islice(self._loader, self._most))
        return islice(cycle(self._batches), len(self))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # as while a copy is made, when there is no loader yet
            raise AttributeError(name)
        return getattr(self._loader, name)


def cached(loader: Any, batches: int = 8) -> Cached:
    """The first batches of a loader again and again, as many in an epoch as the loader has: for any training loop.

        for batch in gdsload.cached(loader):  # in place of the loader: the difference in time is what loading costs
            train(batch)

    They are loaded when the first epoch begins, and stay where they are, so that they take memory of that place. What a
    training step writes into them stays there, too. `len` and all else, such as `set_epoch` and `state_dict`, are the
    loader's: its place is after the batches that were loaded.

    Args:
        loader: gdsload's, torch's, or any iterable with a length.
        batches: how many batches.

    Raises:
        OptionError: if `batches` is no whole number from 1, or the loader has no length.
    """
    return Cached(loader, batches)
