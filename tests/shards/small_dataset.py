"""A small dataset, of several shards or of one, one of numbers, and odd names of fields."""

import numpy as np

from gdsload import Field, ShardWriter

# What has tripped up readers of this and of similar formats.
ODD_NAMES = [
    "x", "é", "e\u0301", "a.b/c", " ", "\0", "\n", '"', "\\", "\u2028", "\ufeff", "👩‍👩‍👧", "__proto__", "dtype", "shape",
    "gdsload", "\U0010ffff",
]  # fmt: skip
SCHEMA = {"x": Field("int32", (3,)), "words": "str", "points": Field("float32", (None, 2))}


def sample_of(number, mark=0):
    """Sample `number` of the small dataset; `mark` tells versions of it apart."""
    return {
        "x": np.array([number, mark, 7], np.int32),
        "words": f"word {number} {mark} ".strip() * (number % 3),
        "points": np.full((number % 4, 2), number + mark, np.float32),
    }


def write_small(path, samples=20, mark=0, **options):
    """Write it."""
    with ShardWriter(path, SCHEMA, **{"shard_bytes": 400, **options}) as writer:
        for number in range(samples):
            writer.write(sample_of(number, mark))


def write_numbers(path, *values, **options):
    """Write a dataset of the field ``n``."""
    with ShardWriter(path, **options) as writer:
        for value in values:
            writer.write({"n": value})
