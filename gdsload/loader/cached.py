"""Repetition of the first batches of a loader: the speed of training if loading took no time."""

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

    def __repr__(self) -> str:
        return f"cached({self._loader!r}, batches={self._most})"

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        if not self._batches:
            self._batches = list(islice(self._loader, self._most))
        return islice(cycle(self._batches), len(self))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked for while a copy is made and has no loader yet
            raise AttributeError(name)
        return getattr(self._loader, name)


def cached(loader: Any, batches: int = 8) -> Cached:
    """Repeat the first batches of a loader, to measure training without loading. Epochs keep their length.

        for batch in gdsload.cached(loader):  # instead of the loader: the difference in time is the cost of loading
            train(batch)

    The batches are loaded when the first epoch begins, and stay in memory on their device. If a training step writes
    into a batch, the change stays. `len` and all other attributes, such as `set_epoch` and `state_dict`, are the
    loader's; its position is after the loaded batches.

    Args:
        loader: a loader of gdsload or torch, or any iterable with a length.
        batches: the number of batches to repeat.

    Raises:
        OptionError: if `batches` is not a whole number of at least 1, or the loader has no length.
    """
    return Cached(loader, batches)
