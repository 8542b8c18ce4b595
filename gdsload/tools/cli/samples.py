"""A dataset's metadata and samples as text, statistics of their numbers, and the choice of the samples shown."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gdsload.errors import FormatError
from gdsload.shards.format.image_header import ImageHeader, read_image_header
from gdsload.shards.format.metadata import class_names

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from gdsload.loader.dataset import ShardDataset

SEED = 0
"""The seed of all random choices here, so that the same samples of a dataset are always shown."""
BINS = 24
_FIRST = 8
_TEXT = 200
_NAMES = 10


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of numbers: their count, the least, greatest and mean of the finite ones, and counts of the others.

    `bars` has the counts of equally wide bins from `least` to `greatest`.
    """

    count: int
    least: int | float
    greatest: int | float
    mean: float
    nan: int
    infinite: int
    bars: tuple[int, ...]


def facts(sample: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The content of each field, JSON-able: of numbers shape, element type, range and the first ones."""
    return {name: _facts(value) for name, value in sample.items()}


def _facts(value: Any) -> dict[str, Any]:
    found: dict[str, Any]
    if isinstance(value, str):
        return {"type": "str", "characters": len(value), "text": value}
    if isinstance(value, bytes):
        found = {"type": "bytes", "bytes": len(value), "first": value[:_FIRST].hex(" ")}
        header, names = header_of(value), ("codec", "width", "height", "orientation")
        return found | {"image": {name: getattr(header, name) for name in names}} if header else found
    found = {"type": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    known, first = spread_of(value), value.flatten()[:_FIRST].tolist()
    if known is None:
        return found | {"first": [str(number) for number in first]}
    if value.dtype.is_floating_point:
        found |= {"nan": known.nan, "infinite": known.infinite}
    if known.bars:
        found |= {"min": known.least, "max": known.greatest, "mean": known.mean}
    # NaN and infinity are no JSON numbers.
    return found | {"first": [one if one - one == 0 else str(one) for one in first]}


def spread_of(values: torch.Tensor) -> Spread | None:
    """The statistics of a tensor's numbers; None for complex numbers."""
    import torch

    if values.is_complex():
        return None
    kind = torch.float64 if values.is_floating_point() else torch.uint8 if values.dtype == torch.bool else values.dtype
    return spread(values.flatten().to(kind).numpy())


def spread(numbers: NDArray[Any]) -> Spread:
    """The statistics of an array's numbers. Each whole number has its own bar, if there are not too many."""
    import numpy as np

    finite = numbers[np.isfinite(numbers)]
    nan = int(np.isnan(numbers).sum())
    if not finite.size:
        return Spread(numbers.size, math.nan, math.nan, math.nan, nan, numbers.size - nan, ())
    least, greatest = finite.min().item(), finite.max().item()
    wide = finite.astype(np.float64)
    if numbers.dtype.kind in "iu" and greatest - least < BINS:
        places, bins = finite - finite.min(), int(greatest - least) + 1
    else:
        room = greatest / 2 - least / 2  # halves, since the difference may overflow
        places = (wide / 2 - least / 2) / room * BINS if room else np.zeros_like(wide)
        bins = BINS if room else 1
    bars = np.bincount(places.astype(np.int64).clip(0, bins - 1), minlength=bins)
    infinite = numbers.size - finite.size - nan
    mean = float((wide / wide.size).sum())
    return Spread(numbers.size, least, greatest, mean, nan, infinite, tuple(map(int, bars)))


def header_of(value: bytes) -> ImageHeader | None:
    """The header of an encoded image; None for other bytes, and if it is damaged."""
    try:
        return read_image_header(value)
    except FormatError:
        return None


def lines(sample: Mapping[str, Any]) -> list[str]:
    """The same for people, a line for each field."""
    width = max(map(len, sample), default=0)
    return [f"{name:<{width}}  {_line(found)}" for name, found in facts(sample).items()]


def _line(found: dict[str, Any]) -> str:
    if found["type"] == "str":
        text = found["text"]
        return f"str, {found['characters']} characters: {text[:_TEXT]!r}{'…' if len(text) > _TEXT else ''}"
    if found["type"] == "bytes":
        image = found.get("image")
        what = f" ({image['codec']}, {image['width']} × {image['height']})" if image else ""
        return f"bytes, {found['bytes']}{what}: {found['first']}{' …' if found['bytes'] > _FIRST else ''}"
    if not found["shape"]:
        return f"{found['type']}, {short(found['first'][0])}"
    words = [f"{found['type']} [{', '.join(map(str, found['shape']))}]"]
    if "min" in found:
        words.append(f"{short(found['min'])} to {short(found['max'])}, mean {short(found['mean'])}")
    words += [f"{found[key]} {word}" for key, word in (("nan", "NaN"), ("infinite", "infinite")) if found.get(key)]
    more = " …" if math.prod(found["shape"]) > _FIRST else ""
    return f"{', '.join(words)}: {' '.join(map(short, found['first']))}{more}"


def short(value: Any) -> str:
    """A number with at most four digits, unless it is a whole number."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def metadata_lines(metadata: Mapping[str, Any]) -> Iterator[str]:
    """The metadata of a dataset, a line for each entry. They may be anything that JSON can hold."""
    for key, value in metadata.items():
        if key == "classes" and isinstance(value, Mapping):
            for field, names in value.items():
                yield f"classes of {field}: {_listed(names)}"
        elif key == "source" and isinstance(value, Mapping):
            options = value.get("options")
            with_them = f", with {_cut(options)}" if options else ""
            place = value.get("path") or value.get("name")
            yield f"from: {value.get('kind')}{f' {place}' if place else ''}{with_them}"
        elif key == "gdsload":
            yield f"written by gdsload {value}"
        else:
            yield f"{key}: {_cut(value)}"


def caption(metadata: Mapping[str, Any], sample: Mapping[str, Any], number: int) -> str:
    """The caption of a sample's picture: its number, and its class if the dataset names classes."""
    for field, names in class_names(metadata).items():
        label = getattr(sample.get(field), "ndim", None) == 0 and int(sample[field])
        if label is not False and 0 <= label < len(names):
            return f"{number} {names[label]}"
    return str(number)


def _listed(names: Any) -> str:
    if not isinstance(names, list):
        return _cut(names)
    more = f", and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return f"{', '.join(map(str, names[:_NAMES]))}{more}"


def _cut(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _TEXT else text[: _TEXT - 1] + "…"


def drawn(samples: int | NDArray[np.int64], count: int) -> list[int]:
    """The sorted numbers of at most `count` random samples, of all that there are or of those with these numbers."""
    import numpy as np

    there = samples if isinstance(samples, int) else len(samples)
    found = np.random.default_rng(SEED).choice(samples, min(count, there), replace=False)
    return sorted(map(int, found))


def label_field(dataset: ShardDataset) -> str | None:
    """The field of class numbers: one whose classes have names, or else one called ``label``; None without one."""
    for name in (*class_names(dataset.metadata), "label"):
        field = dataset.schema.get(name)
        if field is not None and field.kind == "fixed" and not field.shape and "int" in field.dtype.name:
            return name
    return None


def labels_of(dataset: ShardDataset, name: str) -> NDArray[np.int64]:
    """The class number of each sample, shape ``[samples]``."""
    found: NDArray[np.int64] = dataset.column(name).numpy().astype("int64")
    return found
