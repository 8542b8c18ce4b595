"""Encoded images of known numbers."""

import io

import numpy as np
from PIL import Image

from gdsload import Field, ShardWriter


def encoded(number, smallest=9, largest=70):
    """A smooth image of any size in between, in one of the formats."""
    generator = np.random.default_rng(number)
    height, width = generator.integers(smallest, largest, 2).tolist()
    small = generator.integers(0, 256, (height // 6 + 1, width // 6 + 1, 3), np.uint8)
    image = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    out = io.BytesIO()
    image.save(out, ["JPEG", "PNG", "WEBP", "JPEG"][number % 4])
    return out.getvalue()


def written(path, images, kind="image", **others):
    """A dataset of these images, numbered by their labels, and of lists of other encoded images."""
    schema = {"image": Field(kind), "label": Field("int64"), **dict.fromkeys(others, Field("bytes"))}
    with ShardWriter(path, schema, shard_bytes=30_000) as writer:
        writer.write_batch({"image": images, "label": np.arange(len(images)), **others})
    return path
