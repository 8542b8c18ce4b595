"""Options of a conversion: the fields, the changes to samples, and the treatment of bad samples."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from typing import cast as typed

import numpy as np

from gdsload.conversion.reasons import of_user
from gdsload.errors import OptionError, SchemaError
from gdsload.order.checks import check_whole
from gdsload.shards.casts import cast, clip
from gdsload.shards.format.dtypes import DTYPES, dtype_of
from gdsload.shards.format.stored import PackRule, pack_rule
from gdsload.shards.values import is_array, unrounded
from gdsload.system.units import parse_bytes

_MOST = 200


def find_named(spec: str) -> Any:
    """The object called ``package.module:name``; modules of the working folder are looked at last.

    The installed command does not have that folder on its path, as `python -m gdsload` does. It is added last, so that
    it hides no other module, and stays, so that workers find the module, too.

    Raises:
        ImportError, AttributeError, ValueError: if there is no such object.
    """
    module, _, name = spec.partition(":")
    if not module or not name:
        raise ValueError("it has no module, or no name in it")
    try:
        found: Any = _imported(module)
    except ModuleNotFoundError as error:
        here = os.getcwd()
        if error.name != module.partition(".")[0] or here in sys.path:
            raise
        sys.path.append(here)
        importlib.invalidate_caches()
        found = _imported(module)
    for piece in name.split("."):
        found = getattr(found, piece)
    return found


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise
    except Exception as error:  # of the user's code
        raise ImportError(f"its import ends in {type(error).__name__}: {str(error)[:_MOST]}") from error


ONE_SCALE = (
    "A cast leaves each in its scale; `dtype='float32'` makes all samples of files floats from -1 to 1; else pass a "
    "`map=` that divides int16 by 2**15 and int32 by 2**31."
)
"""Advice to users about sounds of several types."""

OnError = Literal["stop", "skip"]
_CLIP = ":clip"


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """All options, beside the source, that decide the result of a conversion; `gdsload.convert` documents them."""

    shard_bytes: int | str = "256MiB"
    fields: tuple[str, ...] | None = None
    casts: tuple[tuple[str, str], ...] = ()
    ragged: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    map: str | None = None
    on_error: str = "stop"
    shuffle_seed: int | None = None
    pack_fields: PackRule = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shard_bytes", parse_bytes(self.shard_bytes, "shard_bytes", at_least=1))
        object.__setattr__(self, "pack_fields", pack_rule(self.pack_fields))
        known = {dtype.name for dtype in DTYPES.values()}
        for field, name in self.casts:
            if name.removesuffix(_CLIP) not in known:
                raise OptionError(
                    f"field {field!r} is to be cast to {name!r}, which is no element type",
                    remedy=f"Supported are {', '.join(sorted(known))}. With {_CLIP} after it, values beyond it are "
                    "clipped.",
                )
        if self.shuffle_seed is not None:
            object.__setattr__(self, "shuffle_seed", check_whole(self.shuffle_seed, "shuffle_seed", 0, 2**64 - 1))
        if self.map is not None:
            find_function(self.map)


class Change:
    """The changes made to each sample or batch: the choice of fields, the user's function, casts.

    The values of a mapping in a sample become fields; the user's function gets the mapping itself.

    Attributes:
        clipped: how many values of each field were clipped, in all calls so far.
    """

    def __init__(self, options: ConvertOptions) -> None:
        self.clipped: dict[str, int] = {}
        self._name = options.map
        self._function = None if options.map is None else find_function(options.map)
        self._fields, self._casts, self._fixed = options.fields, dict(options.casts), options.fixed

    @property
    def wants_samples(self) -> bool:
        """True if samples must come one by one, because the user's function takes single samples."""
        return self._function is not None

    def __call__(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Change a sample or a batch.

        Raises:
            OptionError: if it has no field of a name that was asked for.
            SchemaError: if a cast would lose a value, or the scale that sounds are in.
        """
        if self._function is None:
            self._check_scales(values)
            # If all wanted fields are there, others in a sample do not matter.
            if self._fields is None or not all(name in values for name in self._fields):
                values = _flat(values)
        if self._fields is not None:
            _check_known(self._fields, values)
            values = {name: values[name] for name in self._fields}
        if self._function is not None:
            with of_user(f"map {self._name!r} failed"):
                values = self._function(dict(values))
            if not isinstance(values, Mapping):
                raise OptionError(f"map returned {type(values).__name__}, not a mapping from field names to values")
            values = _flat(values)
        _check_known((*self._casts, *self._fixed), values)
        changed = dict(values)
        for name, kind in self._casts.items():
            changed[name] = self._cast(changed[name], kind, name)
        for name in self._fixed:
            changed[name] = _even(changed[name], name)
        return {name: unrounded(value, name) for name, value in changed.items()}

    def _check_scales(self, values: Mapping[str, Any]) -> None:
        """Refuse to cast sounds of whole numbers: their scale is that of their type, which would be lost."""
        for name, wanted in self._casts.items():
            for kind in _types_of(values[name]) if name in values and f"{name}.sampling_rate" in values else ():
                if not kind.startswith("float") and kind != wanted:
                    raise SchemaError(
                        f"the sound is {kind}, and cast to {wanted} it would keep the scale of that",
                        field=name,
                        remedy=ONE_SCALE,
                    )

    def _cast(self, value: Any, kind: str, field: str) -> Any:
        if isinstance(value, tuple) and len(value) == 2:  # values and offsets of a ragged field
            return self._cast(value[0], kind, field), value[1]
        if isinstance(value, Sequence) and value and is_array(value[0]):
            return [self._cast(one, kind, field) for one in value]
        if not kind.endswith(_CLIP):
            try:
                return cast(value, dtype_of(kind), field)
            except SchemaError as lost:
                raise _or_clipped(lost, value, kind, field) from None
        found, clipped = clip(value, dtype_of(kind.removesuffix(_CLIP)), field)
        if clipped:
            self.clipped[field] = self.clipped.get(field, 0) + clipped
        return found


def _flat(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Values with each of a mapping among them under its own name, ``"meta.id"``, as tables have those of structs.

    Raises:
        SchemaError: if two have the same name then.
    """
    if not any(isinstance(value, Mapping) for value in values.values()):
        return values
    found: dict[str, Any] = {}
    for name, value in values.items():
        inner = _flat(value) if isinstance(value, Mapping) else None
        parts = {name: value} if inner is None else {f"{name}.{key}": part for key, part in inner.items()}
        for part in parts:
            if part in found:
                raise SchemaError("a sample has it twice", field=part, remedy="Rename one of the two.")
        found.update(parts)
    return found


def _types_of(value: Any) -> list[str]:
    """The element types of arrays: of one, of a list of them, or of one with its offsets."""
    listed = value[:1] if isinstance(value, tuple) else value if isinstance(value, list) else [value]
    return [str(one.dtype) for one in listed if is_array(one)]


def _or_clipped(lost: SchemaError, value: Any, kind: str, field: str) -> SchemaError:
    """The error of a cast; its remedy names clipping if that avoids it."""
    try:
        clip(value, dtype_of(kind), field)
    except SchemaError:
        return lost
    remedy = f"Cast it to a type that holds it; or clip and count such values: `casts={{{field!r}: {kind + _CLIP!r}}}`."
    return SchemaError(lost.message, field=field, remedy=remedy)


def _even(value: Any, field: str) -> Any:
    """The values of a batch whose samples are all of one length; a sample is as it is."""
    if not (isinstance(value, tuple) and len(value) == 2):
        return value
    values, lengths = value[0], np.diff(np.asarray(value[1]))
    if len(lengths) and (lengths != lengths[0]).any():
        raise SchemaError(f"samples have from {lengths.min()} to {lengths.max()} rows", field=field)
    return values.reshape(len(lengths), -1 if len(values) else 0, *values.shape[1:])


def _check_known(names: Iterable[str], values: Mapping[str, Any]) -> None:
    for name in names:
        if name not in values:
            raise OptionError(f"there is no field {name!r}", remedy=f"There are {', '.join(map(repr, values))}.")


def find_function(spec: object) -> Callable[[dict[str, Any]], Mapping[str, Any]]:
    """The function that ``package.module:name`` names; an `OptionError` if there is none."""
    if not isinstance(spec, str):
        raise OptionError(
            f"is {spec!r:.200}, which is no name",
            option="map",
            remedy='Put the function in a module, and write it as "package.module:function": workers are processes of '
            "their own, maybe on other machines, and import it by that name.",
        )
    try:
        found = find_named(spec)
        if not callable(found):
            raise ValueError("it cannot be called")
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"is {spec!r}, which cannot be found: {error}",
            option="map",
            remedy='Write it as "package.module:function".',
        ) from error
    return typed("Callable[[dict[str, Any]], Mapping[str, Any]]", found)
