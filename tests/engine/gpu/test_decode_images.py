"""Which images a GPU is given to decode, and what turns them upright."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from gdsload.engine.gpu.decode_images import takes, turned
from gdsload.engine.images.host_decoders import upright
from gdsload.shards.format.image_header import read_image_header


def encoded(kind, mode="RGB", **options):
    out = io.BytesIO()
    Image.new("RGB", (20, 10), (9, 80, 200)).convert(mode).save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "taken"),
    [
        (encoded("JPEG"), True),
        (encoded("JPEG", "L"), True),
        (encoded("JPEG") + b"\0" * 9, True),
        (encoded("JPEG")[:-2], False),
        (encoded("JPEG", progressive=True), False),
        (encoded("JPEG", "CMYK"), False),
        (encoded("PNG"), False),
        (encoded("WEBP"), False),
    ],
)
def test_baseline_jpegs_with_an_end_are_for_the_gpu(data, taken):
    assert takes(read_image_header(data), memoryview(data)) is taken


def test_what_has_no_header_is_not():
    assert not takes(None, memoryview(b"anything"))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_tensors_are_turned_as_arrays_are(orientation):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 7, 3), np.uint8)
    found = turned(torch.from_numpy(pixels).permute(2, 0, 1), orientation)
    assert np.array_equal(found.permute(1, 2, 0).numpy(), upright(pixels, orientation))
