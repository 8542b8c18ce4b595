"""Images decoded on a GPU: what a CPU makes of them but for what decoders differ in, in memory that is free in fact."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from gdsload import DataLoader, Field, FormatError, ShardWriter
from gdsload.engine.gpu import assemble_device
from gdsload.engine.gpu.jpeg_decoders import HardwareDecoder, ListDecoder, best_jpeg_decoder, fresh, list_decoder
from gdsload.engine.images.encoded import EncodedImages, look_at
from gdsload.system.streams import on, side_stream
from gdsload.transforms import DecodeImage

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore:.*torchvision:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*TorchCodec.*"),
]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
KINDS = [
    ("JPEG", "RGB", {"quality": 90}),
    ("JPEG", "RGB", {"subsampling": 0}),
    ("JPEG", "L", {}),
    ("JPEG", "RGB", {"progressive": True}),
    ("JPEG", "CMYK", {}),
    ("PNG", "RGBA", {}),
    ("WEBP", "RGB", {"lossless": True}),
    ("JPEG", "RGB", {"turned": 6}),
    ("JPEG", "RGB", {"turned": 3}),
]
OPTIONS = {
    "random": DecodeImage(size=64, crop="random-resized", flip=0.5),
    "normalized": DecodeImage(
        size=64, crop="random-resized", flip=0.5, mean=MEAN, std=STD, dtype=torch.bfloat16, channels_last=True
    ),
    "middle": DecodeImage(size=48, crop="center", mean=MEAN, std=STD),
    "whole numbers": DecodeImage(size=48, crop="center", mean=(0, 1, 0), std=(1, 2, 1)),
    "any size": DecodeImage(flip=0.5),
    "any size, normalized": DecodeImage(mean=MEAN, std=STD, dtype=torch.float16),
}


def encoded(number):
    generator = np.random.default_rng(number)
    height, width = generator.integers(80, 200, 2).tolist()
    small = generator.integers(0, 256, (height // 16 + 1, width // 16 + 1, 3), np.uint8)
    image = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    kind, mode, options = KINDS[number % len(KINDS)]
    exif = Image.Exif()
    exif[0x0112] = options.get("turned", 1)
    out = io.BytesIO()
    image.convert(mode).save(out, kind, exif=exif, **{k: v for k, v in options.items() if k != "turned"})
    return out.getvalue()


def written(path, images):
    with ShardWriter(path, {"image": Field("bytes"), "label": Field("int64")}, shard_bytes=200_000) as writer:
        for number, data in enumerate(images):
            writer.write({"image": data, "label": number})
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return written(tmp_path_factory.mktemp("decode") / "d", [encoded(number) for number in range(90)])


def loader(path, options, device, **given):
    return DataLoader(path, 16, shuffle="full", seed=3, decode={"image": options}, device=device, **given)


def difference(one, other, options):
    """Of values up to 255, before they were normalized: the mean and the largest."""
    scale = 1.0 if options.result == torch.uint8 else 255.0
    if options.mean is not None:
        scale = 255.0 * torch.tensor(options.std)[:, None, None]
    found = (one.float() - other.float()).abs() * scale
    return float(found.mean()), float(found.max())


@pytest.mark.parametrize("decoder", ["best", "library", "none"])
@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("backend", ["auto", "bounce"])
def test_it_is_what_a_cpu_makes_of_them(path, kind, decoder, backend, monkeypatch):
    if decoder == "none":
        monkeypatch.setattr(assemble_device, "best_jpeg_decoder", lambda device: None)
    elif decoder == "library":
        if list_decoder() is None:
            pytest.skip("neither torchcodec nor torchvision is installed")
        monkeypatch.setattr(assemble_device, "best_jpeg_decoder", lambda device: list_decoder())
    options = OPTIONS[kind]
    rounding = 2.0 if options.result in (torch.bfloat16, torch.float16) else 0.0
    with loader(path, options, "cuda", backend=backend) as there, loader(path, options, "cpu") as here:
        seen = 0
        for one, other in zip(there, here, strict=True):
            assert one["label"].tolist() == other["label"].tolist()
            for label, image, expected in zip(other["label"].tolist(), one["image"], other["image"], strict=True):
                assert image.is_cuda
                assert (image.shape, image.dtype, image.stride()) == (expected.shape, expected.dtype, expected.stride())
                mean, most = difference(image.cpu(), expected, options)
                by_nvjpeg = decoder != "none" and label % len(KINDS) in (0, 1, 2, 7, 8)
                assert mean <= (4.0 if by_nvjpeg else 0.5) + rounding / 2, (label, mean, most)
                assert most <= (40 if by_nvjpeg else 1.01) + rounding, (label, mean, most)
                seen += 1
    assert seen == 90


def test_ranks_and_runs_agree_to_the_bit(path):
    options, runs = OPTIONS["random"], []
    for _ in range(2):
        with loader(path, options, "cuda") as batches:
            runs.append([batch["image"].clone() for batch in batches])
    assert all(map(torch.equal, *runs))


@pytest.fixture
def bad(tmp_path):
    images = [encoded(number * len(KINDS)) for number in range(40)]
    images[5] = images[5][: len(images[5]) // 2]
    middle = len(images[7]) // 2
    images[7] = images[7][:middle] + b"\xff\xd9" + b"\0" * 2000 + images[7][-2:]
    images[30] = b"no image"
    return written(tmp_path / "d", images)


def test_an_image_that_cannot_be_decoded_is_named(bad):
    with (
        DataLoader(bad, 40, decode={"image": OPTIONS["random"]}, device="cuda") as batches,
        pytest.raises(FormatError, match="image of sample 5 in field 'image' cannot be decoded") as caught,
    ):
        next(iter(batches))
    assert (30, 31) in caught.value.samples


def test_or_it_is_zeros(bad):
    options = DecodeImage(**{**vars(OPTIONS["normalized"]), "on_error": "zeros"})
    with DataLoader(bad, 16, decode={"image": options}, device="cuda") as batches:
        kept = [*batches]
    good = torch.cat([batch["image.decoded"] for batch in kept])
    images = torch.cat([batch["image"] for batch in kept]).float().abs().sum((1, 2, 3)).cpu()
    assert not good[[5, 30]].any()
    assert torch.equal(images > 0, good)


def test_batches_stay_what_they_are(path):
    """Memory of images and batches goes around while older batches are still held, and read on a busy stream."""
    options = OPTIONS["normalized"]
    with loader(path, options, "cuda") as batches:
        sums = [batch["image"].double().sum().item() for batch in batches]
    with loader(path, options, "cuda") as batches:
        found = []
        for batch in batches:
            torch.cuda._sleep(20_000_000)
            found.append(batch["image"].double().sum())
            del batch
        assert [one.item() for one in found] == sums


NBYTES = 64 * 2**20


def at_once(data, device):
    """As nvJPEG's hardware does: it writes into its results without regard to the stream that they are made on."""
    made = torch.empty(NBYTES, dtype=torch.uint8, device=device)
    with torch.cuda.stream(torch.cuda.Stream(device)):
        made.fill_(255)
        torch.cuda.current_stream().synchronize()
    return [made]


def still_read(decode):
    """How much of freed memory, which queued work still has to read, another user's bytes have got into."""
    device = torch.device("cuda", torch.cuda.current_device())
    stream = side_stream(device)
    torch.cuda.empty_cache()
    with on(stream):
        before = torch.zeros(NBYTES, dtype=torch.uint8, device=device)
        seen = torch.empty_like(before)
        stream.synchronize()
        torch.cuda._sleep(400_000_000)
        seen.copy_(before)
        address = before.data_ptr()
        del before
        made = decode(device, stream)
        assert made[0].data_ptr() == address
        stream.synchronize()
        return int((seen != 0).sum())


def test_nothing_is_decoded_into_memory_that_is_still_read():
    decoder = ListDecoder("at once", at_once, turns=True)
    assert still_read(lambda device, stream: decoder.function([], device)) == NBYTES  # what the wait is for
    assert still_read(lambda device, stream: fresh(decoder, [], stream)) == 0


def test_the_decoder_at_hand_waits_too(device):
    decoder = best_jpeg_decoder(device)
    if decoder is None:
        pytest.skip("there is nothing that decodes JPEGs")
    out = io.BytesIO()
    Image.new("RGB", (4096, 4096), (255, 255, 255)).save(out, "JPEG")
    values = torch.frombuffer(bytearray(out.getvalue() * 4), dtype=torch.uint8)
    looked = look_at([EncodedImages(values, np.full(4, len(out.getvalue())))], 2**30)
    stream = side_stream(device)
    for _ in range(5):
        with on(stream):
            before = torch.zeros((4, 3, 4096, 4096), dtype=torch.uint8, device=device)
            seen = torch.empty_like(before)
            stream.synchronize()
            torch.cuda._sleep(100_000_000)
            seen.copy_(before)
            del before
            made = decoder.decode(looked, np.arange(4), stream)
            stream.synchronize()
            assert not seen.any()
            assert all(int(part.image(number).min()) >= 250 for part in made for number in range(4))
    decoder.close()


def test_hardware_decodes_what_is_meant_for_it(path, device):
    """Grey, coloured and turned images in one call, without anything else having to."""
    decoder = best_jpeg_decoder(device)
    if not isinstance(decoder, HardwareDecoder):
        pytest.skip("nvJPEG's hardware decoder is not there")
    images = [encoded(number) for number in range(90)]
    values = torch.frombuffer(bytearray(b"".join(images)), dtype=torch.uint8)
    looked = look_at([EncodedImages(values, np.array([len(one) for one in images]))], 2**30)
    mine = np.flatnonzero(looked.hardware())
    assert {number % len(KINDS) for number in mine.tolist()} == {0, 1, 2, 7, 8}
    stream = side_stream(device)
    with on(stream):
        made = decoder.decode(looked, mine, stream)
        stream.synchronize()
    assert sorted(number for part in made for number in part.numbers.tolist()) == mine.tolist()
    decoder.close()
