"""The facts of a dataset card: values and lengths of each field, samples of each class, and some texts.

Facts that require reading samples are computed from random samples, with a fixed seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gdsload.errors import GdsloadError
from gdsload.shards.format.metadata import class_names
from gdsload.tools.bench.cache_state import look, why_blind
from gdsload.tools.cli.samples import SEED, Spread, drawn, header_of, label_field, labels_of, spread, spread_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gdsload.loader.dataset import ShardDataset
    from gdsload.shards.format.schema import Field

_SAMPLES, _BYTES = 2000, 16 * 2**20
"""The most samples whose values are read, and their most bytes, so that a card of a large dataset takes seconds."""
MOST_EXACT = 20_000_000
"""The most samples of which all labels and lengths are read, 8 bytes each."""
_FIRST_TEXTS, _CHARACTERS = 3, 400
_TOGETHER = 64
_ROWS, ROW = 20, 8
"""The most classes that have a row of samples, and the most samples in it."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """The lengths of a ragged field's samples, in rows, or in bytes of a text.

    Attributes:
        quantiles: the least, the median, the 99th percentile and the greatest length.
        padding: the share of padding in random batches of 64 samples, each padded to its longest sample.
        padding_to_longest: the share of padding if every sample is padded to the longest one of the dataset.
        spread: the histogram.
    """

    quantiles: tuple[int, int, int, int]
    padding: float
    padding_to_longest: float
    spread: Spread


@dataclass(frozen=True, slots=True)
class FieldFacts:
    """The facts of one field.

    Attributes:
        nbytes: of all its samples; estimated if not all lengths were read.
        values: statistics of its numbers in the random samples; None for texts, bytes, images and complex numbers.
        images: codecs, widths and heights of encoded images, as text.
    """

    name: str
    field: Field
    nbytes: int
    values: Spread | None = None
    lengths: Lengths | None = None
    images: str = ""
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Classes:
    """The classes of a label field, in order of their numbers: the name and the number of samples of each.

    `rows` has the names of the largest classes, and the numbers of random samples of each.
    """

    name: str
    counts: tuple[tuple[str, int], ...]
    samples: int
    rows: tuple[tuple[str, list[int]], ...]


def field_facts(dataset: ShardDataset) -> tuple[list[FieldFacts], int]:
    """The facts of each field, and the number of samples that their values were read from.

    Raises:
        GdsloadError: if samples cannot be read.
    """
    samples = len(dataset)
    each = max(dataset.num_bytes // max(samples, 1), 1)
    ids = drawn(samples, min(_SAMPLES, max(_BYTES // each, 1)))
    if not ids:
        return [FieldFacts(name, field, 0) for name, field in dataset.schema.items()], 0
    batch = dataset.read_batch(ids)
    return [_facts(dataset, name, batch[name]) for name in dataset.schema], len(ids)


def _facts(dataset: ShardDataset, name: str, found: Any) -> FieldFacts:
    """The facts of a field, from its values in the random samples."""
    field, samples = dataset.schema[name], len(dataset)
    if field.kind == "fixed":
        return FieldFacts(name, field, field.row_bytes * samples, spread_of(found))
    if samples <= MOST_EXACT:
        lengths = dataset.lengths(name).numpy()
    elif field.is_string:
        lengths = np.array([len(one.encode() if isinstance(one, str) else one) for one in found], np.int64)
    else:
        lengths = np.diff(found[1].numpy())
    nbytes = int(lengths.sum() / max(len(lengths), 1) * samples) * field.row_bytes
    known = lengths_of(lengths)
    if not field.is_string:
        return FieldFacts(name, field, nbytes, spread_of(found[0]), known)
    images = _images(found) if field.kind == "image" else ""
    texts: tuple[str, ...] = ()
    if field.kind == "str":
        first = dataset.read_batch(range(min(_FIRST_TEXTS, samples)), fields=[name])[name]
        texts = tuple(one if len(one) <= _CHARACTERS else one[:_CHARACTERS] + "…" for one in first)
    return FieldFacts(name, field, nbytes, None, known, images, texts)


def lengths_of(lengths: NDArray[np.int64]) -> Lengths:
    """The quantiles of the lengths of samples, their histogram, and the cost of padding."""
    found = np.percentile(lengths, (0, 50, 99, 100), method="inverted_cdf")
    least, middle, most, longest = (int(one) for one in found)
    mixed = np.random.default_rng(SEED).permutation(lengths)
    starts = np.arange(0, len(mixed), _TOGETHER)
    sizes = np.diff([*starts.tolist(), len(mixed)])
    room = int((np.maximum.reduceat(mixed, starts) * sizes).sum())
    total = int(mixed.sum())
    padding = 1 - total / room if room else 0.0
    to_longest = 1 - total / (longest * len(mixed)) if longest else 0.0
    return Lengths((least, middle, most, longest), padding, to_longest, spread(mixed))


def _images(found: Sequence[bytes]) -> str:
    """The codecs and sizes of encoded images, as text."""
    headers = [header for one in found if (header := header_of(one))]
    if not headers:
        return ""
    codecs = Counter(one.codec for one in headers)
    sides = [(min(side), max(side)) for side in ([one.width for one in headers], [one.height for one in headers])]
    size = " × ".join(str(low) if low == high else f"{low}–{high}" for low, high in sides)
    return f"{', '.join(f'{codec} {count / len(headers):.0%}' for codec, count in codecs.most_common())}, {size} pixels"


def classes_of(dataset: ShardDataset) -> Classes | None:
    """The classes, if the dataset has a field of class numbers."""
    name = label_field(dataset)
    if name is None or not len(dataset):
        return None
    if len(dataset) <= MOST_EXACT:
        ids, labels = np.arange(len(dataset)), labels_of(dataset, name)
    else:
        ids = np.array(drawn(len(dataset), MOST_EXACT // 100))
        labels = dataset.read_batch(ids, fields=[name])[name].numpy().astype(np.int64)
    known = class_names(dataset.metadata).get(name, [])
    found = dict(zip(*(one.tolist() for one in np.unique(labels, return_counts=True)), strict=True))
    if not known and len(found) > len(labels) / 2:  # the numbers are not classes
        return None
    names = {one: known[one] if 0 <= one < len(known) else str(one) for one in (*range(len(known)), *found)}
    counts = tuple((text, found.get(one, 0)) for one, text in names.items())
    largest = sorted(found, key=lambda one: -found[one])[:_ROWS]
    rows = ((names[one], drawn(ids[labels == one], ROW)) for one in sorted(largest))
    return Classes(name, counts, len(labels), tuple(rows))


def cached_share(dataset: ShardDataset) -> float | None:
    """The share of the shards' pages that is in the page cache; None if unknown."""
    files = [source.path for source in dataset.sources]
    try:
        return None if not files or why_blind(files) else look(files).share
    except (GdsloadError, OSError):
        return None
