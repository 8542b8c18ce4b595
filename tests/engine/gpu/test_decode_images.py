"""Which images a GPU is given to decode, and what becomes of them and of the others."""

from __future__ import annotations

import io
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from PIL import Image

from gdsload import FormatError
from gdsload.engine.gpu import decode_images, resample_device
from gdsload.engine.gpu.decode_images import DeviceImages, JpegDecoder, turned
from gdsload.engine.images.decode import HostImages, ImageBatch
from gdsload.engine.images.encoded import EncodedImages, look_at
from gdsload.engine.images.frames import Draws
from gdsload.engine.images.host_decoders import upright
from gdsload.transforms import DecodeImage


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
    assert look_at(batch_of([data, b"anything"]).batch["x"], 1000).complete_baseline().tolist() == [taken, False]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_tensors_are_turned_as_arrays_are(orientation):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 7, 3), np.uint8)
    found = turned(torch.from_numpy(pixels).permute(2, 0, 1), orientation)
    assert np.array_equal(found.permute(1, 2, 0).numpy(), upright(pixels, orientation))


class Waited:
    """A stream, and an event of it, where there are none."""

    def synchronize(self):
        pass


def by_pillow(data, device):
    found = []
    for one in data:
        with Image.open(io.BytesIO(one.numpy().tobytes())) as image:
            found.append(torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).contiguous())
    return found


def refuse(data, device):
    raise RuntimeError("not today")


def too_small(data, device):
    return [one[:, 1:] for one in by_pillow(data, device)]


@pytest.fixture
def on_cpu(monkeypatch):
    """Stand-ins for CUDA's streams, so that all but what they are for is done on the CPU."""
    monkeypatch.setattr(decode_images, "side_stream", lambda device: Waited())
    monkeypatch.setattr(decode_images, "on", lambda stream: nullcontext())
    monkeypatch.setattr(decode_images, "record", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Waited())
    monkeypatch.setattr(resample_device, "can_launch", lambda: False)


def batch_of(images):
    lengths = np.array([len(one) for one in images], np.int64)
    values = torch.frombuffer(bytearray(b"".join(images)), dtype=torch.uint8)
    draws = Draws(5, np.arange(len(images)))
    return ImageBatch(
        {"x": EncodedImages(values, lengths)},
        draws,
        lambda number: (number + 100, "a.safetensors"),
        lambda: np.arange(len(images)),
    )


EXIF = Image.Exif()
EXIF[0x0112] = 6
MIXED = [
    encoded("JPEG"),
    encoded("PNG"),
    encoded("JPEG", exif=EXIF),
    encoded("JPEG", "L"),
    encoded("WEBP"),
    encoded("JPEG", progressive=True),
]
WANTED = {
    "random": DecodeImage(size=8, crop="random-resized", flip=0.5),
    "normalized": DecodeImage(size=(5, 7), mean=(0.5,) * 3, std=(0.2,) * 3, dtype=torch.float16, channels_last=True),
    "any size": DecodeImage(flip=0.5),
}


@pytest.mark.parametrize("decode", [by_pillow, refuse, too_small, None])
@pytest.mark.parametrize("kind", WANTED)
@pytest.mark.parametrize("at_once", [2, 128])
def test_whoever_decodes_them_they_are_what_the_host_makes_of_them(on_cpu, monkeypatch, kind, decode, at_once):
    monkeypatch.setattr(decode_images, "IMAGES_OF_A_CALL", at_once)
    options, cpu = {"x": WANTED[kind]}, torch.device("cpu")
    decoder = None if decode is None else JpegDecoder("Pillow", decode, turns=False)
    made = []
    for images in (HostImages(options), DeviceImages(options, cpu, decoder)):
        batches = [batch_of(MIXED), batch_of(MIXED[:2])]
        images(batches, lambda: False)
        images.close()
        made.append(batches)
    for one, other in zip(*made, strict=True):
        assert all(map(torch.equal, one.batch["x"], other.batch["x"]))
        assert [image.stride() for image in one.batch["x"]] == [image.stride() for image in other.batch["x"]]


@pytest.mark.parametrize("kind", WANTED)
def test_errors_are_the_hosts(on_cpu, kind):
    images = [*MIXED[:2], MIXED[0][:300], b"none", *MIXED[2:]]
    decoder = JpegDecoder("Pillow", by_pillow, turns=False)
    raising = DeviceImages({"x": WANTED[kind]}, torch.device("cpu"), decoder)
    with pytest.raises(FormatError, match="a.safetensors: the image of sample 102 in field 'x'") as caught:
        raising([batch_of(images)], lambda: False)
    assert caught.value.samples == ((102, 104),)
    zeros = DecodeImage(**{**vars(WANTED[kind]), "on_error": "zeros"})
    going_on, batch = DeviceImages({"x": zeros}, torch.device("cpu"), decoder), batch_of(images)
    going_on([batch], lambda: False)
    assert batch.batch["x.decoded"].tolist() == [True, True, False, False, True, True, True, True]
    assert [bool(image.any()) for image in batch.batch["x"]] == batch.batch["x.decoded"].tolist()
    for one in (raising, going_on):
        one.close()
