"""The kernel that makes batches of decoded images: what it computes is what torch computes for one image on a CPU.

Where there is no GPU, its source is compiled for the processor: a thread at a time, the arithmetic is the same.
"""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
import torch

from gdsload.engine.gpu import resample_device
from gdsload.engine.gpu.pixels import PackedPixels, TensorPixels
from gdsload.engine.gpu.resample_device import resample, source, words
from gdsload.engine.images.frames import Draws, Frame, frames
from gdsload.engine.images.resample import put_normalized, resampled
from gdsload.transforms import DecodeImage

SHIM = r"""
#include <math.h>
#include <string.h>
#define __device__
#define __global__
static inline int max(int a, int b) { return a > b ? a : b; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline float max(float a, float b) { return a > b ? a : b; }
static inline float min(float a, float b) { return a < b ? a : b; }
static inline unsigned __float_as_uint(float v) { unsigned u; memcpy(&u, &v, 4); return u; }
struct Dim { unsigned x; };
static Dim threadIdx = {0}, blockIdx = {0}, blockDim = {1}, gridDim = {1};
"""
CALL = '\nextern "C" void call(const Params* p) { resample(*p); }\n'
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OPTIONS = {
    "random": DecodeImage(size=(24, 30), crop="random-resized", flip=0.5),
    "middle": DecodeImage(size=20, crop="center", flip=0.5),
    "all": DecodeImage(size=(33, 17), flip=0.5),
    "large": DecodeImage(size=(150, 140), crop="random-resized"),
}
SIZES = [(61, 83), (300, 401), (7, 9), (1, 1), (40, 3), (64, 64)]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Builds the kernel for the processor, once for each source."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    folder, made = tmp_path_factory.mktemp("kernel"), {}

    def build(dtype, last):
        if (dtype, last) not in made:
            name = folder / f"k{len(made)}"
            text = SHIM + source(dtype, channels_last=last).replace("LAYOUT", "") + CALL
            name.with_suffix(".cpp").write_text(text)
            command = ["g++", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-o", f"{name}.so", f"{name}.cpp"]
            subprocess.run(command, check=True)
            made[dtype, last] = ctypes.CDLL(f"{name}.so").call
        return made[dtype, last]

    return build


def pictures(layout):
    found = []
    for height, width in SIZES:
        image = torch.from_numpy(np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8))
        found.append(image.permute(2, 0, 1) if layout == "rows" else image.permute(2, 0, 1).contiguous())
    return found


def normalized(dtype):
    values = {} if dtype == torch.uint8 else {"mean": MEAN, "std": STD, "dtype": dtype}
    return {kind: DecodeImage(**{**vars(options), **values}) for kind, options in OPTIONS.items()}


def placed(images):
    return [TensorPixels(dict(enumerate(images)))]


def framed(options):
    heights, widths = np.array(SIZES, np.int64).T
    return frames(options, heights, widths, Draws(11, np.arange(len(SIZES))))


def computed(call, rows, out, table=None):
    """Have the kernel make images, as many as there is memory for."""
    address = 0 if table is None else table.data_ptr()
    params = np.array([rows.ctypes.data, out.data_ptr(), address, len(out), *out.shape[2:]], np.int64)
    call(ctypes.c_void_p(params.ctypes.data))
    return out


def close(found, images, given, options):
    """Return whether results are torch's, but for 1 before normalization."""
    size, table = options.rows_and_columns, options.table()
    unit = 1.0 if table is None else float((1 / table[1]).max())
    for image, frame, one in zip(images, given.tolist(), found, strict=True):
        expected = torch.empty(one.shape, dtype=one.dtype)
        put_normalized(resampled(image, Frame(*frame), size), table, expected)
        most = unit * 1.01 + (0.02 if one.dtype == torch.bfloat16 else 1e-4)
        difference = (one.float() - expected.float()).abs()
        assert difference.max() <= most, (frame, difference.max())
        assert difference.mean() < 0.35 * unit


@pytest.mark.parametrize("layout", ["rows", "planes"])
@pytest.mark.parametrize(
    ("dtype", "last"), [(torch.uint8, False), (torch.uint8, True), (torch.float32, True), (torch.bfloat16, False)]
)
def test_on_a_processor_it_computes_what_torch_does(built, dtype, last, layout):
    call, images = built(dtype, last), pictures(layout)
    for kind, options in normalized(dtype).items():
        given, size, table = framed(options), options.rows_and_columns, options.table()
        form = torch.channels_last if last else torch.contiguous_format
        out = torch.empty((len(images) + 1, 3, *size), dtype=dtype, memory_format=form).fill_(7)
        computed(call, words(placed(images), np.concatenate([given, given[:1]])), out, table)
        close(out[:-1], images, given, options)
        assert not out[-1].any(), kind


@pytest.mark.parametrize("planes", [1, 3])
def test_images_that_lie_in_one_memory_are_turned_by_their_steps(built, planes):
    call, options = built(torch.uint8, False), OPTIONS["random"]
    orientations = np.arange(1, 9)
    heights, widths = np.array([9, 14, 7, 30, 21, 8, 11, 16]), np.array([12, 5, 33, 8, 10, 19, 40, 16])
    nbytes = planes * heights * widths
    begins = 64 + np.cumsum(nbytes) - nbytes
    memory = torch.from_numpy(np.random.default_rng(0).integers(0, 256, 64 + int(nbytes.sum()), np.uint8))
    packed = PackedPixels(memory, orientations - 1, begins, heights, widths, orientations, planes)
    images = [packed.image(number) for number in range(8)]
    assert packed.image(8) is None
    upright = np.array([image.shape[1:] for image in images], np.int64)
    given = frames(options, *upright.T, Draws(4, np.arange(8)))
    out = torch.empty((8, 3, *options.rows_and_columns), dtype=torch.uint8)
    close(computed(call, words([packed], given), out), images, given, options)
    assert torch.equal(out, computed(call, words(placed(images), given), torch.empty_like(out)))


@pytest.mark.parametrize("kind", OPTIONS)
def test_where_it_cannot_be_launched_torch_does_it(kind, monkeypatch):
    monkeypatch.setattr(resample_device, "can_launch", lambda: False)
    options, images = OPTIONS[kind], pictures("rows")
    given, size = framed(options), options.rows_and_columns
    out = torch.full((len(images) + 1, 3, *size), 7, dtype=torch.uint8)
    resample(placed(images), np.concatenate([given, given[:1]]), None, [out])
    for image, frame, one in zip(images, given.tolist(), out, strict=False):
        assert torch.equal(one, resampled(image, Frame(*frame), size))
    assert not out[-1].any()


@pytest.mark.cuda
@pytest.mark.parametrize("launched", [True, False], ids=["kernel", "torch"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["planes", "channels last"])
@pytest.mark.parametrize("layout", ["rows", "planes"])
def test_on_a_gpu_it_computes_what_torch_does(dtype, last, layout, launched, monkeypatch):
    pytest.importorskip("cupy")
    if not launched:
        monkeypatch.setattr(resample_device, "can_launch", lambda: False)
    device, images = torch.device("cuda", torch.cuda.current_device()), pictures(layout)
    for options in normalized(dtype).values():
        given, size, table = framed(options), options.rows_and_columns, options.table()
        form = torch.channels_last if last else torch.contiguous_format
        out = torch.empty((len(images), 3, *size), dtype=dtype, device=device, memory_format=form)
        there = [image.to(device) for image in images]
        # Three batches, one of them empty, and as if there were more images before them.
        pixels, all_frames = placed([there[0], *there]), np.concatenate([given[:1], given])
        resample(pixels, all_frames, None if table is None else table.to(device), [out[:2], out[2:2], out[2:]], 1)
        torch.cuda.synchronize()
        close(out.cpu(), images, given, options)
