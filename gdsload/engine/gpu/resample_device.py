"""Crop, antialiased resize, cut, flip, normalization and layout of all images of a batch by one kernel.

`engine.images.resample` is what it is measured by: before the normalization a value may differ from torch's by 1, as
torch rounds between columns and rows and the kernel does not. Normalization and conversion are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gdsload.engine.gpu.pixels import Pixels
from gdsload.engine.images.frames import FRAME_WORDS, Frame
from gdsload.engine.images.resample import put_normalized, resampled
from gdsload.kernels import launch as kernels
from gdsload.kernels.fused_transforms import STORES
from gdsload.kernels.launch import IN_VRAM, can_launch, launch
from gdsload.system.arrays import IntArray

_MOST_PIXELS = 2**31
"""Pixels of a result, below which the kernel can count them in 32 bits."""
_SOURCE = r"""
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned u32;

struct Image {               // see `words`
    const unsigned char* at;  // the first pixel of the upright image
    i64 channel, row, column;  // bytes from one to the next
    i64 top, left, height, width;  // the rectangle that is resized
    i64 rows, columns;  // what it is resized to
    i64 cut_top, cut_left;  // where the result begins in that
    i64 flip;
};

struct Params {
    const Image* __restrict__ images;
    OUT_T* __restrict__ out;
    const float* __restrict__ table;  // means of the channels, and their standard deviations
    u64 count, rows, columns;
};

__device__ inline OUT_T store(float v) { STORE }

// The pixels that one pixel of a resized line is made of, and their weights: a triangle as wide as two of its own
// pixels, or two of the image's if those are larger. This is what torch and Pillow call antialiased bilinear.
struct Taps {
    int first, count;
    float begin, slope;
    __device__ Taps(int at, i64 from, i64 to) {
        const float scale = (float)from / (float)to, reach = scale >= 1.0f ? scale : 1.0f;
        const float center = scale * ((float)at + 0.5f);
        first = max((int)(center - reach + 0.5f), 0);
        count = min((int)(center + reach + 0.5f), (int)from) - first;
        slope = 1.0f / reach;
        begin = (float)first - center + 0.5f;
    }
    __device__ float weight(int i) const { return max(1.0f - fabsf((begin + (float)i) * slope), 0.0f); }
    __device__ float total() const {
        float sum = 0.0f;
        for (int i = 0; i < count; ++i) sum += weight(i);
        return sum;
    }
};

extern "C" __global__ void LAYOUT resample(const Params p) {
    const u32 columns = p.columns, each = p.rows * p.columns, all = p.count * each;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < all; i += gridDim.x * blockDim.x) {
        const u32 n = i / each, inside = i - n * each, y = inside / columns, x = inside - y * columns;
        const Image& image = p.images[n];
        float red = 0.0f, green = 0.0f, blue = 0.0f;
        if (image.at) {
            const int seen = image.flip ? (int)(columns - 1 - x) : (int)x;
            const Taps down((int)(y + image.cut_top), image.height, image.rows);
            const Taps across((int)(seen + image.cut_left), image.width, image.columns);
            const unsigned char* line = image.at + (image.top + down.first) * image.row
                + (image.left + across.first) * image.column;
            for (int j = 0; j < down.count; ++j, line += image.row) {
                const unsigned char* from = line;
                float r = 0.0f, g = 0.0f, b = 0.0f;
                for (int k = 0; k < across.count; ++k, from += image.column) {
                    const float weight = across.weight(k);
                    r += weight * from[0];
                    g += weight * from[image.channel];
                    b += weight * from[2 * image.channel];
                }
                const float weight = down.weight(j);
                red += weight * r;
                green += weight * g;
                blue += weight * b;
            }
            const float unit = 1.0f / (down.total() * across.total());
            red = floorf(min(max(red * unit, 0.0f), 255.0f) + 0.5f);
            green = floorf(min(max(green * unit, 0.0f), 255.0f) + 0.5f);
            blue = floorf(min(max(blue * unit, 0.0f), 255.0f) + 0.5f);
        }
        const u64 at = LAST ? (u64)i * 3 : (u64)n * 3 * each + inside, step = LAST ? 1 : each;
        const float found[3] = {red, green, blue};
        for (int c = 0; c < 3; ++c) {
            p.out[at + c * step] = image.at ? store(MADE) : (OUT_T)0;
        }
    }
}
"""
_NORMALIZED = "(found[c] - p.table[c]) / p.table[3 + c]"


def source(dtype: torch.dtype, *, channels_last: bool) -> str:
    """The kernel's source for results of a type and layout, but for the grid's LAYOUT."""
    word, store = STORES[dtype] if dtype != torch.uint8 else ("unsigned char", "return (unsigned char)v;")
    made = "found[c]" if dtype == torch.uint8 else _NORMALIZED
    text = _SOURCE
    for name, by in {"OUT_T": word, "STORE": store, "MADE": made, "LAST": str(int(channels_last))}.items():
        text = text.replace(name, by)
    return text


def words(pixels: Sequence[Pixels], frames: IntArray) -> IntArray:
    """Images and their frames as the kernel has them, ``[images, 4 + FRAME_WORDS]``; zeros where there is none."""
    found = np.zeros((len(frames), 4 + FRAME_WORDS), np.int64)
    for part in pixels:
        part.place(found[:, :4])
    found[:, 4:] = frames
    return found


def resample(
    pixels: Sequence[Pixels], frames: IntArray, table: torch.Tensor | None, outs: Sequence[torch.Tensor], first: int = 0
) -> None:
    """Make batches of images, on the stream that is current: by the kernel, or by torch where it cannot be launched.

    `pixels`, see `words`, are on one device, and must live until the work is done. `table` is there, too, see
    `DecodeImage.table`; None: the result is uint8. The results, `outs`, are ``[images, 3, height, width]``, contiguous
    or channels last, all alike. `first` is the number of the first image that is made; the others follow it.
    """
    outs = [out for out in outs if out.numel()]
    if not outs:
        return
    if max(out.numel() for out in outs) // 3 >= _MOST_PIXELS or not can_launch():
        _one_by_one(pixels, frames, table, outs, first)
        return
    out, device = outs[0], outs[0].device
    last = out.is_contiguous(memory_format=torch.channels_last) and not out.is_contiguous()
    wanted = words(pixels, frames)[first : first + sum(map(len, outs))]
    # From ordinary memory this is safe, and the host does not wait for the stream.
    given = torch.from_numpy(wanted).to(device, non_blocking=True)
    made = _kernel(out.dtype, device, channels_last=last)
    begin, normal = given.data_ptr(), 0 if table is None else table.data_ptr()
    for out in outs:
        params = [begin, out.data_ptr(), normal, *out.shape[:1], *out.shape[2:]]
        launch(made, device, IN_VRAM, np.array(params, np.int64).view(np.uint64))
        begin += len(out) * wanted.strides[0]
    # `given` may be freed: its memory belongs to this stream, and is used again after the kernels alone.


def prepare(dtype: torch.dtype, *, channels_last: bool, device: torch.device) -> None:
    """Have the kernel for such results compiled ahead, if the device is a GPU."""
    if device.type == "cuda":
        what = "resample", dtype, channels_last, device
        kernels.prepare(what, lambda: can_launch() and _kernel(dtype, device, channels_last=channels_last))


def _kernel(dtype: torch.dtype, device: torch.device, *, channels_last: bool) -> int:
    return kernels.kernel(source(dtype, channels_last=channels_last), "resample", 1, IN_VRAM, device)


def _one_by_one(
    pixels: Sequence[Pixels], frames: IntArray, table: torch.Tensor | None, outs: Sequence[torch.Tensor], first: int
) -> None:
    """See `resample`."""
    for number, out in enumerate((out for each in outs for out in each), first):
        image = next((image for part in pixels if (image := part.image(number)) is not None), None)
        if image is None:
            out.zero_()
        else:
            size = (out.shape[1], out.shape[2])
            put_normalized(resampled(image, Frame(*frames[number].tolist()), size), table, out)
