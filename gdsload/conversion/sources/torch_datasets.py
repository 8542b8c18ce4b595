"""torch's datasets, map-style and iterable: what they give, whatever it was made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from gdsload.conversion.conversion_options import find_named
from gdsload.conversion.reasons import of_user
from gdsload.conversion.row_source import filled, spans
from gdsload.conversion.source import Item, Part
from gdsload.errors import OptionError
from gdsload.loader.loader import DataLoader
from gdsload.shards.pictures import is_picture, picture_array
from gdsload.system.units import counted

_RUN = 1024


class TorchSource:
    """A torch dataset.

    A sample that is a mapping has its keys as fields, a named tuple its names, another tuple or list ``"0"``, ``"1"``
    and so on, and anything else is the field ``"0"``. Of a mapping in it each value becomes a field, ``"meta.id"``.
    Pillow images become uint8 ``[channels, height, width]``, as they are: the dataset may have turned them.

    What a dataset reads cannot be seen from outside: a conversion that was interrupted is taken for the same if the
    dataset has the same name and length, and the options are the same.

    Args:
        spec: ``"package.module:name"``, or the object itself, which must be picklable then. A dataset, or something
            that can be called without arguments and returns one, or is a generator function: what it yields are the
            samples, one part that one worker makes, and that begins again after an interruption.
        names: the names of the fields of samples that are no mappings.

    Raises:
        OptionError: if there is nothing of that name, or it is no dataset.
    """

    kind = "torch dataset"
    threads = False

    def __init__(self, spec: Any, *, names: Sequence[str] | None = None) -> None:
        if isinstance(names, str) or (names is not None and len(set(names)) != len(names)):
            raise OptionError(f"is {names!r}, no list of different names", option="names")
        self.spec = spec
        self.names = None if names is None else tuple(names)
        self._dataset: Any = None

    @property
    def name(self) -> str:
        """The name of the dataset: ``"package.module:name"``."""
        kind = self.spec if isinstance(self.spec, type) else type(self.spec)
        return self.spec if isinstance(self.spec, str) else f"{kind.__module__}:{kind.__qualname__}"

    def describe(self) -> dict[str, Any]:
        dataset = self._open()
        return {
            "kind": self.kind,
            "dataset": self.name,
            "type": f"{type(dataset).__module__}.{type(dataset).__qualname__}",
            "samples": -1 if _is_iterable(dataset) else self._length(dataset),
            "names": self.names,
        }

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: runs of samples, or all of a dataset that is iterable only."""
        dataset = self._open()
        if _is_iterable(dataset):
            return [Part("all samples", ())]
        count = self._length(dataset)
        parts = [Part(f"samples {low} to {high - 1}", (low, high), high - low) for low, high in spans(0, count, _RUN)]
        return filled(parts, "sample", self.name)

    def read(self, part: Part) -> Iterator[Item]:
        dataset = self._open()
        if part.where:
            low, high = (int(edge) for edge in part.where)
            for index in range(low, high):
                yield Item(f"sample {index}", partial(self._sample, dataset, index))
            return
        with of_user(f"the dataset failed after {counted(0, 'sample')}", self.name):
            iterator = iter(dataset)
        number = 0
        while True:
            with of_user(f"the dataset failed after {counted(number, 'sample')}", self.name):
                try:
                    sample = next(iterator)
                except StopIteration:
                    return
            yield Item(f"sample {number}", partial(self._fields, sample))
            number += 1

    def _length(self, dataset: Any) -> int:
        with of_user("the dataset's __len__ failed", self.name):
            return len(dataset)

    def _sample(self, dataset: Any, index: int) -> dict[str, Any]:
        with of_user(f"the dataset's __getitem__({index}) failed", self.name):
            sample = dataset[index]
        return self._fields(sample)

    def _fields(self, sample: Any) -> dict[str, Any]:
        if isinstance(sample, Mapping):
            return {str(name): self._value(str(name), value) for name, value in sample.items()}
        values = list(sample) if isinstance(sample, tuple | list) else [sample]
        names = self.names or getattr(sample, "_fields", None) or [str(number) for number in range(len(values))]
        if len(names) != len(values):
            raise OptionError(f"a sample has {len(values)} values, but names has {len(names)}")
        return {name: self._value(name, value) for name, value in zip(names, values, strict=True)}

    def _value(self, name: str, value: Any) -> Any:
        return picture_array(value, name) if is_picture(value) else value

    def _open(self) -> Any:
        if self._dataset is None:
            found = _find(self.spec) if isinstance(self.spec, str) else self.spec
            if not _is_dataset(found) and callable(found):
                with of_user("the call without arguments failed", self.name):
                    made = found()
                found = _Again(found) if isinstance(made, Iterator) else made
            if isinstance(found, torch.utils.data.DataLoader | DataLoader) or not _is_dataset(found):
                raise OptionError(
                    f"{self.name} is {type(found).__name__}, no dataset",
                    remedy="A dataset has __getitem__ and __len__, or can be iterated again and again. Of a loader "
                    "pass its dataset, loader.dataset; of an iterator the function that makes it.",
                )
            self._dataset = found
        return self._dataset

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_dataset": None}


class _Again:
    """The items of a generator function, which can be iterated again and again."""

    def __init__(self, function: Callable[[], Iterator[Any]]) -> None:
        self._function = function

    def __iter__(self) -> Iterator[Any]:
        return self._function()


def _is_iterable(dataset: Any) -> bool:
    return isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__getitem__")


def _is_dataset(found: Any) -> bool:
    if isinstance(found, type | str | bytes):
        return False
    if isinstance(found, torch.utils.data.IterableDataset):
        return True
    has_length = hasattr(found, "__getitem__") and hasattr(found, "__len__")
    return has_length or (isinstance(found, Iterable) and not isinstance(found, Iterator))


def _find(spec: str) -> Any:
    try:
        return find_named(spec)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"the dataset {spec!r} cannot be found: {error}", remedy='Write it as "package.module:name".'
        ) from error
