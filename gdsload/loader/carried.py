"""The arguments that copies of a loader are made with: meshes and groups are shared, samplers are not."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any, NoReturn

from gdsload.errors import OptionError

__all__ = ["carried", "unpacked", "with_own_sampler"]

_NAMES = ("mesh", "process_group")
_SAMPLERS = {"sampler", "batch_sampler"}


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
        """The mesh or group that the loader was given.

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


def with_own_sampler(given: Mapping[str, Any], dataset: object) -> dict[str, Any]:
    """Arguments for a copy in this process, of the same dataset.

    Where a loader stands is a state of its sampler and the generator of that: two loaders would move each other. One
    that cannot be copied is shared.
    """
    found = dict(given)
    for name in _SAMPLERS & given.keys():
        with suppress(TypeError):  # it holds a lock, say
            found[name] = deepcopy(given[name], {id(dataset): dataset})
    return found
