"""Crop, resize, cut and flip of one image: what Pillow and torchvision make of it."""

import numpy as np
import pytest
import torch
from PIL import Image

from gdsload.engine.images.frames import Frame
from gdsload.engine.images.resample import put_normalized, resampled
from gdsload.transforms import DecodeImage


def picture(height=61, width=83):
    return torch.from_numpy(np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8))


FRAMES = {
    "smaller": Frame(3, 5, 50, 60, 24, 30, 0, 0, 0),
    "larger": Frame(10, 11, 7, 9, 24, 30, 0, 0, 0),
    "middle": Frame(0, 0, 61, 83, 30, 41, 3, 6, 0),
    "flipped": Frame(3, 5, 50, 60, 24, 30, 0, 0, 1),
    "same": Frame(1, 2, 24, 30, 24, 30, 0, 0, 1),
    "one pixel": Frame(60, 82, 1, 1, 24, 30, 0, 0, 0),
    "narrow": Frame(0, 7, 61, 1, 24, 30, 0, 0, 0),
}


@pytest.mark.parametrize("layout", ["rows", "planes"])
@pytest.mark.parametrize("kind", FRAMES)
def test_it_is_what_pillow_makes_of_it(kind, layout):
    frame, image = FRAMES[kind], picture()
    given = image.permute(2, 0, 1)
    found = resampled(given if layout == "rows" else given.contiguous(), frame, (24, 30))
    part = image[frame.top : frame.top + frame.height, frame.left : frame.left + frame.width].numpy()
    whole = np.asarray(Image.fromarray(part).resize((frame.columns, frame.rows), Image.Resampling.BILINEAR))
    expected = whole[frame.cut_top : frame.cut_top + 24, frame.cut_left : frame.cut_left + 30]
    expected = expected[:, ::-1] if frame.flip else expected
    assert found.shape == (3, 24, 30)
    assert np.abs(found.permute(1, 2, 0).numpy().astype(int) - expected).max() <= 1


def test_without_a_size_it_is_the_image():
    image = picture().permute(2, 0, 1)
    whole = Frame(0, 0, 61, 83, 61, 83, 0, 0, 0)
    assert resampled(image, whole, None).data_ptr() == image.data_ptr()
    assert torch.equal(resampled(image, whole._replace(flip=1), None), image.flip(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_it_is_normalized(dtype):
    image = picture().permute(2, 0, 1)
    out = torch.empty(image.shape, dtype=dtype)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    put_normalized(image, DecodeImage(mean=mean, std=std).table(), out)
    expected = (image / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert torch.allclose(out.float(), expected, atol=1e-5 if dtype == torch.float32 else 0.02)
    put_normalized(image, DecodeImage(dtype=dtype).table(), out)
    assert torch.allclose(out.float(), image / 255, atol=1e-5 if dtype == torch.float32 else 0.003)
