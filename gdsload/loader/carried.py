"""Meshes and process groups among a loader's arguments, which copies in this process share and others cannot have."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, NoReturn

from gdsload.errors import OptionError

__all__ = ["carried", "unpacked"]

_NAMES = ("mesh", "process_group")


class _Carried:
    """A mesh or a group of processes. A group is not held: as long as somebody does, a new one may hang.

    Args:
        name: which option it was given as.
        value: what was given.
    """

    def __init__(self, name: str, value: Any) -> None:
        self._name = name
        self._value = weakref.ref(value) if name == "process_group" else lambda: value

    def value(self) -> Any:
        """What was given.

        Raises:
            OptionError: if it is not there any more.
        """
        found = self._value()
        if found is None:
            raise OptionError(
                f"the {self._name} that the loader was given has been destroyed",
                remedy="Make a new loader with one that there is.",
            )
        return found

    def __deepcopy__(self, _memo: object) -> _Carried:
        return self

    def __reduce__(self) -> NoReturn:
        raise OptionError(
            f"a loader with {self._name}= cannot be pickled: the processes that it stands for are known to this "
            "process alone",
            remedy="Make the loader in each rank's process, or pass rank= and world_size= instead.",
        )


def carried(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments, with a mesh or a group as what a copy can be made with."""
    return {
        name: _Carried(name, value) if name in _NAMES and value is not None else value for name, value in given.items()
    }


def unpacked(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as they were given.

    Raises:
        OptionError: if a group is not there any more.
    """
    return {name: value.value() if isinstance(value, _Carried) else value for name, value in given.items()}
