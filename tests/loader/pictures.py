"""Encoded images of known numbers."""

import io

import numpy as np
from PIL import Image


def encoded(number, smallest=9, largest=70):
    """A smooth image of any size in between, in one of the formats."""
    generator = np.random.default_rng(number)
    height, width = generator.integers(smallest, largest, 2).tolist()
    small = generator.integers(0, 256, (height // 6 + 1, width // 6 + 1, 3), np.uint8)
    image = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    out = io.BytesIO()
    image.save(out, ["JPEG", "PNG", "WEBP", "JPEG"][number % 4])
    return out.getvalue()
