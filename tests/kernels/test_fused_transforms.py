"""Transforms by one kernel: which are put together, and that they make what they make one by one, to the bit."""

import pytest
import torch

from gdsload import OptionError
from gdsload.kernels import fused_transforms
from gdsload.kernels.fused_transforms import FusedTransforms, fuse
from gdsload.transforms import CenterCrop, ChannelsLast, Compose, Normalize, RandomCrop, RandomFlip

CROP, FLIP, CENTER, LAST = RandomCrop("x", 24), RandomFlip("x"), CenterCrop("x", 20), ChannelsLast("x")
NORMAL = Normalize("x", (0.5, 0.4, 0.3), (0.1, 0.2, 0.3))
OTHER = RandomFlip("y")


def double(batch):
    return batch


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], []),
        ([double], [double]),
        ([CROP, FLIP, NORMAL], [[CROP, FLIP, NORMAL]]),
        ([CROP, FLIP, NORMAL, LAST], [[CROP, FLIP, NORMAL, LAST]]),
        ([Compose([CROP, FLIP]), Compose([NORMAL, double])], [[CROP, FLIP, NORMAL], double]),
        ([NORMAL, CROP], [[NORMAL], [CROP]]),  # a crop may put zeros there, which are not normalized any more
        ([CROP, OTHER, FLIP], [[CROP], [OTHER], [FLIP]]),
        ([LAST, FLIP, LAST, LAST], [LAST, [FLIP, LAST], LAST]),
        ([CENTER, CENTER, LAST], [CENTER, CENTER, LAST]),
        ([CROP, double, LAST], [[CROP], double, LAST]),
        ([OTHER, LAST], [[OTHER], LAST]),
        ([FLIP] * 10, [[FLIP] * 8, [FLIP] * 2]),
    ],
)
def test_which_become_one(given, expected):
    found = [list(one.steps) if isinstance(one, FusedTransforms) else one for one in fuse(given)]
    assert found == expected


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_on_a_cpu_they_are_themselves(dtype):
    batch = {"x": torch.randint(0, 255, (5, 3, 32, 30)).to(dtype), "y": torch.zeros(5, 2)}
    (made,) = fuse([CROP, FLIP, NORMAL])
    found = made(batch, torch.Generator().manual_seed(3))
    expected = Compose([CROP, FLIP, NORMAL])(batch, torch.Generator().manual_seed(3))
    assert torch.equal(found["x"], expected["x"])
    assert found["y"] is batch["y"]


@pytest.mark.parametrize("batch", [{"y": 1}, {"x": [1]}, {"x": torch.zeros(2, 3, 4, 5)}])
def test_errors_are_those_of_the_transforms(batch):
    (made,) = fuse([CROP, FLIP])
    with pytest.raises(OptionError, match="RandomCrop"):
        made(batch)


SETS = {
    "crop": [RandomCrop("x", 24)],
    "wide": [RandomCrop("x", (31, 7))],
    "padded": [RandomCrop("x", (33, 40), padding=5)],
    "only padding": [RandomCrop("x", 3, padding=40)],
    "flip": [RandomFlip("x", 0.5)],
    "upside down": [RandomFlip("x", 0.5, -2), RandomFlip("x", 1.0, 3)],
    "both": [RandomFlip("x", 0.5, (-1, 2))],
    "center": [CenterCrop("x", (21, 20)), RandomFlip("x")],
    "all": [RandomCrop("x", 30, padding=2), RandomFlip("x"), CenterCrop("x", 21), RandomFlip("x", 0.4, -2)],
    "again": [RandomFlip("x"), RandomCrop("x", 20, padding=3), RandomFlip("x"), RandomCrop("x", 25, padding=4)],
}


@pytest.mark.cuda
@pytest.mark.parametrize("layout", [[], [LAST]], ids=["rows", "channels last"])
@pytest.mark.parametrize("after", [None, torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_what_they_make_is_what_they_make_one_by_one(dtype, after, layout):
    pytest.importorskip("cupy")
    steps = {name: [*moves] for name, moves in SETS.items()}
    for name, moves in steps.items():
        for channels, samples in ((3, 9), (1, 1), (4, 70)):
            mean = torch.linspace(0.1, 0.9, channels).tolist()
            more = [] if after is None else [Normalize("x", mean, [value + 0.3 for value in mean], after)]
            source = torch.randint(0, 256, (samples, channels, 32, 30), device="cuda")
            batch = {"x": source.to(dtype) / (1 if dtype == torch.uint8 else 255)}
            batch["x"] = batch["x"].to(dtype)
            given = [*moves, *more, *layout]
            (made,) = fuse(given)
            assert isinstance(made, FusedTransforms)
            expected = Compose(given)(batch, torch.Generator("cuda").manual_seed(7))["x"]
            found = made(batch, torch.Generator("cuda").manual_seed(7))["x"]
            assert torch.equal(found, expected), (name, channels)
            assert found.dtype == expected.dtype
            for form in (torch.contiguous_format, torch.channels_last):
                assert found.is_contiguous(memory_format=form) == expected.is_contiguous(memory_format=form)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.bool, torch.int16, torch.float8_e4m3fn, torch.complex64], ids=str)
def test_moves_of_any_elements(dtype):
    pytest.importorskip("cupy")
    words = {1: torch.uint8, 2: torch.int16, 8: torch.int64}[dtype.itemsize]
    value = torch.randint(0, 2, (20, 3, 32, 30), device="cuda").to(words).view(dtype)
    given = [RandomCrop("x", 24), RandomFlip("x")]
    expected = Compose(given)({"x": value.view(words)}, torch.Generator("cuda").manual_seed(1))["x"]
    found = fuse(given)[0]({"x": value}, torch.Generator("cuda").manual_seed(1))["x"]
    assert torch.equal(found.view(words), expected)


@pytest.mark.cuda
def test_the_kernel_is_used_where_it_can_be(monkeypatch):
    pytest.importorskip("cupy")
    launched, real = [], fused_transforms.launch
    monkeypatch.setattr(
        fused_transforms, "launch", lambda *args, **more: (launched.append(args), real(*args, **more))[1]
    )
    (made,) = fuse([CROP, FLIP, NORMAL])
    images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8, device="cuda")
    for value, count in (
        (images, 1), (images.float(), 1), (images.int(), 0), (images.double(), 0), (images[:0], 0),
        (images.contiguous(memory_format=torch.channels_last), 0), (images.cpu(), 0),
    ):  # fmt: skip
        launched.clear()
        made({"x": value})
        assert len(launched) == count, value.dtype


@pytest.mark.cuda
def test_from_the_global_generator():
    pytest.importorskip("cupy")
    value = torch.rand(30, 3, 32, 32, device="cuda")
    torch.cuda.manual_seed(5)
    expected = Compose([CROP, FLIP, NORMAL])({"x": value})["x"]
    torch.cuda.manual_seed(5)
    assert torch.equal(fuse([CROP, FLIP, NORMAL])[0]({"x": value})["x"], expected)
