"""Several transforms as one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from gdsload.errors import OptionError

_NOTE_CHARACTERS = 1000


class Compose:
    """Transforms one after the other; those that take a `generator` share one.

    Args:
        transforms: each is called with a batch, or with the result of the one before it.

    Raises:
        OptionError: if one cannot be called.
    """

    def __init__(self, transforms: Sequence[Callable[..., Any]]) -> None:
        self.transforms = tuple(transforms)
        for transform in self.transforms:
            if not callable(transform):
                raise OptionError(f"{transform!r} is no transform: it cannot be called")
        self._takes = tuple(map(_takes_generator, self.transforms))

    @property
    def random(self) -> bool:
        """True if one of the transforms takes a generator."""
        return any(self._takes)

    def __call__(self, batch: Any, generator: torch.Generator | None = None) -> Any:
        """Apply the transforms one after the other, and return the last one's result."""
        for transform, takes in zip(self.transforms, self._takes, strict=True):
            try:
                batch = transform(batch, generator=generator) if takes else transform(batch)
            except Exception as error:
                with suppress(Exception):  # the error is the transform's
                    error.add_note(f"raised by the transform {repr(transform)[:_NOTE_CHARACTERS]}")
                raise
        return batch

    def __repr__(self) -> str:
        return f"Compose({list(self.transforms)!r})"


def callables(value: Any, name: str) -> tuple[Callable[..., Any], ...]:
    """Transforms as an option has them: none, one, or several in a list; OptionError if one cannot be called."""
    if value is None:
        return ()
    found = tuple(value) if isinstance(value, list | tuple) else (value,)
    for transform in found:
        if not callable(transform):
            raise OptionError(f"is {value!r}: {transform!r} cannot be called", option=name)
    return found


def _takes_generator(transform: Callable[..., Any]) -> bool:
    """Return whether a transform takes a generator, and has none as its default."""
    called = getattr(transform, "_orig_mod", transform)  # of a module that torch.compile has wrapped
    called = called.forward if isinstance(called, torch.nn.Module) else called
    try:
        parameter = inspect.signature(called).parameters.get("generator")
    except (TypeError, ValueError):  # not known of some that are written in C
        return False
    return parameter is not None and not isinstance(parameter.default, torch.Generator)
