"""The fields that are decoded, their options, and their size after decoding: the option ``decode``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gdsload.engine.images.decode import decoded_nbytes
from gdsload.engine.images.frames import Draws
from gdsload.engine.images.host_decoders import refuse_without_decoder
from gdsload.engine.steps import Ordered, Steps
from gdsload.errors import OptionError
from gdsload.loader.batch_fields import mean_sample_bytes
from gdsload.loader.known_fields import known_field
from gdsload.loader.selection import Selected
from gdsload.order import Purpose, derive_key
from gdsload.shards.format.schema import Schema
from gdsload.transforms import DecodeImage

__all__ = ["decoded_fields", "decoded_sample_bytes", "image_draws"]


def decoded_fields(schema: Schema, fields: Sequence[str], given: object) -> dict[str, DecodeImage]:
    """The decoding of images in each field that is read, by the field's name.

    Args:
        schema: all fields.
        fields: those that are read.
        given: the option.

    Raises:
        OptionError: if it cannot be done.
    """
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

    Args:
        seed: the loader's.
        epoch: the epoch's number.
        steps: its steps.
        rank: this rank.
    """
    if isinstance(steps, Ordered):
        key, schedule = derive_key(seed, epoch, Purpose.IMAGES), steps.schedule
        return lambda step: Draws(key, np.arange(*schedule.span(step)))
    return lambda step: Draws(derive_key(seed, epoch, Purpose.IMAGES, step, rank), np.arange(steps.size(step)))
