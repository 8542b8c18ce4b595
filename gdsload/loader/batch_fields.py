"""The fields of a batch, the padding and decoding of some, and the bytes of a sample."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from gdsload.engine.assemble import BatchForm
from gdsload.engine.clips import ClipCodec, united
from gdsload.engine.codecs import RaggedForm, codecs_of
from gdsload.engine.images.decode import decoded_nbytes
from gdsload.engine.images.frames import Draws
from gdsload.engine.images.host_decoders import refuse_without_decoder
from gdsload.engine.sample_transform import INDEX
from gdsload.engine.steps import Ordered, Steps
from gdsload.errors import OptionError, SchemaError
from gdsload.loader.selection import Selected
from gdsload.loader.wanted import known_field, known_fields
from gdsload.order import Purpose, derive_key
from gdsload.shards.format.dtypes import DType
from gdsload.shards.format.schema import Schema
from gdsload.shards.values import as_bytes, held
from gdsload.transforms import DecodeImage

if TYPE_CHECKING:
    from gdsload.loader.options import Options


@dataclass(frozen=True, slots=True)
class Padded:
    """Ragged fields are padded to the longest sample of a batch: ``ragged="padded"`` with other values than 0.

    Attributes:
        value: the number that fields are filled up with, or one for each field: ``{"tokens": 0, "labels": -100}``.

    Raises:
        OptionError: if it is no number.
    """

    name: ClassVar[RaggedForm] = "padded"
    value: float | Mapping[str, float] = 0

    def __post_init__(self) -> None:
        for value in self.value.values() if isinstance(self.value, Mapping) else [self.value]:
            if not isinstance(value, numbers.Number):
                raise OptionError(f"has the value {self.value!r}, which is no number", option="Padded")


def field_names(schema: Schema, options: Options) -> tuple[str, ...]:
    """The fields that are read, in the schema's order: those that are named, else those of `as_tuple`, else all.

    Raises OptionError if one does not exist, or has the name of one that `with_index` or `with_real` adds.
    """
    fields, handed_out = options.fields, options.tuple_names
    added = [name for name, is_added in (("index", options.with_index), ("real", options.with_real)) if is_added]
    if handed_out and not (options.transform or options.device_transform or options.sample_transform):
        # Nothing can add a field, or needs one that is not handed out.
        own = [name for name in handed_out if name not in added]
        wanted = known_fields(schema, (own or None) if fields is None else fields)
        for name in own:
            known_field(schema, name)
            if name not in wanted:
                raise OptionError(f"names {name!r}, which `fields={fields!r}` leaves out", option="as_tuple")
    else:
        wanted = known_fields(schema, fields)
    for name in added:
        if name in wanted:
            message = f"adds {name!r} to each batch, but the dataset has a field of that name"
            raise OptionError(message, option=f"with_{name}", remedy="Leave the field out: `fields=[...]`.")
    return wanted


def batch_form(
    selected: Selected, fields: Sequence[str], options: Options, decode: Mapping[str, DecodeImage]
) -> BatchForm:
    """The form of a batch; OptionError if a field cannot be padded as asked, or cannot be in windows."""
    stored, offsets = selected.stored, selected.offsets
    selected.refuse_ragged_windows(fields)
    asked = Padded() if options.ragged == "padded" else options.ragged
    padding = _padding(stored.schema, fields, asked.value) if isinstance(asked, Padded) else {}
    ragged, index = asked.name if isinstance(asked, Padded) else asked, "index" if options.with_index else None
    if options.sample_transform is not None:
        ragged, index = "offsets", index or INDEX
    codecs = codecs_of(stored, fields, ragged, padding, decode)
    if offsets is not None:
        inside = stored.columns_of(fields)
        codecs = {
            column: ClipCodec(codec, {name: offsets[name] for name in inside[column]})
            for column, codec in codecs.items()
        }
    return BatchForm(codecs, index, tuple(fields), decode)


def _padding(schema: Schema, fields: Sequence[str], value: float | Mapping[str, float]) -> dict[str, NDArray[np.uint8]]:
    """For each field that is padded, the bytes of the element that it is filled up with; shape ``[itemsize]``.

    Raises OptionError if a field's element type cannot hold its value, or a field is named that there is not.
    """
    ragged = [name for name in schema if schema[name].kind == "ragged"]
    values = value if isinstance(value, Mapping) else dict.fromkeys(ragged, value)
    unknown = [name for name in values if name not in ragged]
    if unknown:
        raise OptionError(
            f"names {unknown[0]!r}, which is no field that is padded",
            option="Padded",
            remedy=f"Those are {', '.join(map(repr, ragged)) or 'none'}.",
        )
    return {name: _element(name, schema[name].dtype, values.get(name, 0)) for name in ragged if name in fields}


def _element(name: str, dtype: DType, value: float) -> NDArray[np.uint8]:
    """The bytes of a number, by the rule that `ShardWriter.write` has."""
    try:
        return as_bytes(value.item() if isinstance(value, np.generic) else value, dtype, name)
    except SchemaError:
        raise OptionError(
            f"the padding is {value!r}, which {dtype.name} cannot hold: it holds {held(dtype)}",
            field=name,
            remedy="Pass another one, or one for each field: `ragged=gdsload.Padded({'tokens': 0, 'labels': -100})`. "
            "To have this one, convert the field to an element type that holds it.",
        ) from None


def refuse_ragged(schema: Schema, fields: Sequence[str], decode: Mapping[str, DecodeImage]) -> None:
    """Refuse fields that differ in shape from sample to sample, where batches are copied into the same tensors."""
    for name in fields:
        if schema[name].ragged and (name not in decode or decode[name].rows_and_columns is None):
            raise OptionError(
                f"needs fields of a fixed shape, but {name!r} is ragged or a text",
                option="reuse_buffers",
                remedy="Leave the field out: `fields=[...]`.",
            )


def mean_sample_bytes(selected: Selected, fields: Sequence[str]) -> float:
    """Bytes of an average sample, or window, over the fields that are read; for ragged ones an estimate."""
    columns, offsets = selected.stored.columns, selected.offsets
    wanted = selected.stored.columns_of(fields)
    each = {name: 1 if offsets is None else len(united(offsets[one] for one in wanted[name])) for name in wanted}
    fixed = sum(columns[name].row_bytes * each[name] for name in wanted if not columns[name].ragged)
    ragged = [name for name in columns if columns[name].ragged]
    chosen = [name for name in ragged if name in wanted]
    samples = sum(len(dataset) for dataset in selected.datasets)
    if not chosen or not samples:
        return float(fixed)
    data = sum(dataset.num_bytes for dataset in selected.datasets) / samples - selected.stored.fixed_bytes
    return fixed + max(data, 0.0) * len(chosen) / len(ragged)


def decoded_fields(schema: Schema, fields: Sequence[str], given: object) -> dict[str, DecodeImage]:
    """The decoding of images in each field that is read, by its name; OptionError if the option cannot be used."""
    if given is None:
        return {}
    remedy = 'Pass `decode={"image": gdsload.transforms.DecodeImage(...)}`.'
    if not isinstance(given, Mapping):
        raise OptionError(f"is {given!r}, which is no mapping of fields", option="decode", remedy=remedy)
    for name, options in given.items():
        field = known_field(schema, name)
        if not isinstance(options, DecodeImage):
            raise OptionError(f"is {options!r}", option=f"decode[{name!r}]", remedy=remedy)
        if field.kind not in ("image", "bytes"):
            raise OptionError(f"names {name!r}, which is {field} and holds no encoded images", option="decode")
        if options.on_error == "zeros" and f"{name}.decoded" in schema:
            raise OptionError(
                f"adds '{name}.decoded' to each batch if `on_error='zeros'`, but the dataset has a field of that name",
                option=f"decode[{name!r}]",
            )
    found = {name: given[name] for name in fields if name in given}
    if found:
        refuse_without_decoder()
    return found


def decoded_sample_bytes(selected: Selected, fields: Sequence[str], decode: Mapping[str, DecodeImage]) -> float:
    """Bytes of an average sample in a batch, where images are decoded; of those of all sizes an estimate."""
    rest = [name for name in fields if name not in decode]
    found = mean_sample_bytes(selected, rest) if rest else 0.0
    return found + sum(decoded_nbytes(one, mean_sample_bytes(selected, [name])) for name, one in decode.items())


def image_draws(seed: int, epoch: int, steps: Steps, rank: int) -> Callable[[int], Draws]:
    """The function that gives the random draws of a step's images.

    They depend on seed, epoch, and the position of each sample in the order that all ranks share: not on which batch or
    rank it comes to. With a sampler, on step, rank and place in the batch.
    """
    if isinstance(steps, Ordered):
        key, schedule = derive_key(seed, epoch, Purpose.IMAGES), steps.schedule
        return lambda step: Draws(key, np.arange(*schedule.span(step)))
    return lambda step: Draws(derive_key(seed, epoch, Purpose.IMAGES, step, rank), np.arange(steps.size(step)))
