"""Crops, flips and normalization of images by one kernel, where torch makes a pass over the batch for each step.

A run of transforms of one field, `gdsload.transforms`' own, becomes one. Random numbers are drawn by the transforms
themselves, so that the result is theirs to the bit. What a kernel is not made for is done by the transforms: other
element types, images that are not contiguous, machines without cupy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from gdsload.kernels.launch import IN_VRAM, can_launch, kernel, launch
from gdsload.transforms import CenterCrop, ChannelsLast, Compose, Normalize, RandomCrop, RandomFlip
from gdsload.transforms.fields import height_and_width

_LINES = 8
"""Lines that a warp makes: enough that what is found once for all of them takes no time."""
_MOST_STEPS = 8
_MOST_ELEMENTS = 2**31
"""Elements before and after, below which the kernel can count them in 32 bits."""
_CROP, _FLIP = 0, 1
_FUSIBLE = RandomCrop | RandomFlip | CenterCrop | Normalize

_SOURCE = r"""
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned u32;

struct Step {            // from the first to the last
    u64 kind;            // 0: crop, 1: flip
    const i64* top;      // of each sample's rectangle, or null for `row`
    const i64* left;     // likewise, or null for `column`
    const bool* chosen;  // of a flip: which samples
    i64 row, column;     // of a flip: whether rows, and columns, are reversed
    i64 padding;
    i64 height, width;   // of the image that it is applied to
};

struct Params {
    const IN_T* __restrict__ in;
    OUT_T* __restrict__ out;
    const float* __restrict__ table;  // means of the channels, and their standard deviations
    u64 samples, channels, height, width, rows, columns, steps;
    Step step[8];
};

// Element `step * i + begin` of a line, or line of an image, for the numbers i from `low` to `high` - 1; 0 for others.
struct Taken {
    i64 step, begin, low, high;
    __device__ void cut(i64 first, i64 size) {
        begin += first;
        low = max(low, step > 0 ? -begin : begin - size + 1);
        high = min(high, step > 0 ? size - begin : begin + 1);
    }
    __device__ void turn(i64 size) { step = -step; begin = size - 1 - begin; }
};

__device__ inline float load(IN_T v) { LOAD }
__device__ inline OUT_T store(float v) { STORE }

// A warp makes some lines of one channel, or of all where channels are last: what crops and flips come to, that is from
// where a line and an element of it are taken, is the same for all of them. Both are counted in 32 bits, because to
// divide in 64 takes longer than all the rest.
extern "C" __global__ void LAYOUT transform(const Params p) {
    const u32 lane = threadIdx.x % 32, warps = gridDim.x * (blockDim.x / 32), rows = p.rows, channels = p.channels;
    const u32 planes = LAST ? 1 : channels, width = LAST ? p.columns * channels : p.columns;
    const u32 parts = (rows + LINES - 1) / LINES, all = p.samples * planes * parts;
    const u64 image = p.height * p.width;
    for (u32 part = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; part < all; part += warps) {
        const u32 above = part / parts, n = above / planes, plane = above - n * planes;
        Taken across = {1, 0, 0, (i64)p.columns}, down = {1, 0, 0, (i64)rows};
        for (int k = (int)p.steps - 1; k >= 0; --k) {
            const Step& s = p.step[k];
            if (s.kind == 0) {
                down.cut((s.top ? s.top[n] : s.row) - s.padding, s.height);
                across.cut((s.left ? s.left[n] : s.column) - s.padding, s.width);
            } else if (s.chosen[n]) {
                if (s.row) down.turn(s.height);
                if (s.column) across.turn(s.width);
            }
        }
        const int low = across.low, high = across.high, step = across.step;
        const IN_T* const plain = p.in + ((u64)n * channels + plane) * image + across.begin;
        const u32 first = (part - above * parts) * LINES, stop = min(first + LINES, rows);
        for (u32 line = first; line < stop; ++line) {
            const bool inside = line >= down.low && line < down.high;
            const IN_T* const from = plain + (inside ? down.step * (i64)line + down.begin : 0) * (i64)p.width;
            OUT_T* const to = p.out + ((u64)above * rows + line) * width;
            for (u32 i = lane; i - lane < width; i += 32 * DEPTH) {
                IN_T found[DEPTH];
                #pragma unroll
                for (int k = 0; k < DEPTH; ++k) {
                    const u32 at = i + 32 * k, c = LAST ? at % channels : 0;
                    const int x = LAST ? at / channels : at;
                    found[k] = 0;
                    if (at < width && inside && x >= low && x < high) found[k] = from[c * image + step * x];
                }
                #pragma unroll
                for (int k = 0; k < DEPTH; ++k) {
                    const u32 at = i + 32 * k, c = LAST ? at % channels : plane;
                    if (at < width) to[at] = MADE;
                }
            }
        }
    }
}
"""
_COPIED = "found[k]"
_NORMALIZED = "store((load(found[k]) - p.table[c]) / p.table[channels + c])"
_WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}
_LOADS = {
    torch.uint8: ("unsigned char", "return v;"),
    torch.float32: ("float", "return v;"),
    torch.float16: ("unsigned short", 'float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v)); return f;'),
    torch.bfloat16: ("unsigned short", "return __uint_as_float((unsigned)v << 16);"),
}
STORES = {
    torch.float32: ("float", "return v;"),
    torch.float16: ("unsigned short", 'unsigned short h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v)); return h;'),
    torch.bfloat16: (
        "unsigned short",
        "const unsigned u = __float_as_uint(v); return v != v ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;",
    ),
}
"""For each element type what the kernel calls it, and how it becomes a float, or is made of one: rounded to the
nearest, ties to even, as torch does."""


def fuse(transforms: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
    """The same transforms; of runs that one kernel can do, the one that does it."""
    runs: list[list[Any]] = []
    for given in transforms:
        for one in given.transforms if isinstance(given, Compose) else [given]:
            if runs and _continues(runs[-1], one):
                runs[-1].append(one)
            else:
                runs.append([one])
    found: list[Callable[..., Any]] = []
    for run in runs:
        views = all(isinstance(one, CenterCrop | ChannelsLast) for one in run)  # which cost nothing
        found += [FusedTransforms(run)] if isinstance(run[0], _FUSIBLE) and not views else run
    return found


def _continues(run: list[Any], one: Any) -> bool:
    """Return whether the kernel of a run can do one more: not after a normalization, nor when it is full."""
    last = run[-1]
    if not isinstance(last, _FUSIBLE) or not isinstance(one, _FUSIBLE | ChannelsLast) or one.field != last.field:
        return False
    return isinstance(one, ChannelsLast) or not (isinstance(last, Normalize) or len(run) == _MOST_STEPS)


class FusedTransforms:
    """Crops and flips of one field, then at most one `Normalize`, then at most one `ChannelsLast`, by one kernel."""

    def __init__(self, steps: Sequence[Any]) -> None:
        self.steps = tuple(steps)
        self._compose = Compose(steps)
        self._moves = [step for step in steps if isinstance(step, RandomCrop | RandomFlip | CenterCrop)]
        self._normalize = next((step for step in steps if isinstance(step, Normalize)), None)
        self._last = isinstance(steps[-1], ChannelsLast)
        self.field: str = steps[0].field
        self._tables: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}
        self._sources: dict[torch.dtype, str] = {}

    def __repr__(self) -> str:
        return repr(self._compose)

    def __call__(self, batch: Any, generator: torch.Generator | None = None) -> Any:
        """The batch with the field transformed; see the transforms."""
        value = batch.get(self.field) if isinstance(batch, dict) else None
        sizes = self._sizes(value) if isinstance(value, torch.Tensor) else None
        if value is None or sizes is None:
            return self._compose(batch, generator)
        return {**batch, self.field: self._made(value, sizes, generator)}

    def _sizes(self, value: torch.Tensor) -> list[tuple[int, int]] | None:
        """Height and width before each move, and after the last; None if a kernel cannot do it, or it is an error."""
        if not (value.is_cuda and value.dim() == 4 and value.is_contiguous()):
            return None
        known = value.itemsize in _WORDS
        if self._normalize is not None:
            known = value.dtype in _LOADS and self._normalize.result in STORES
        channels = value.shape[1]
        if not known or not 0 < value.numel() < _MOST_ELEMENTS or not can_launch():
            return None
        if self._normalize is not None and len(self._normalize.mean) not in (1, channels):
            return None
        sizes = [(value.shape[2], value.shape[3])]
        for step in self._moves:
            height, width = sizes[-1]
            if isinstance(step, RandomFlip):
                dims = (step.dims,) if isinstance(step.dims, int) else step.dims
                if not all(dim in (-1, -2, 2, 3) for dim in dims) or len({dim % 4 for dim in dims}) < len(dims):
                    return None
                sizes.append(sizes[-1])
                continue
            rows, columns = height_and_width(step, step.size)
            around = 2 * step.padding if isinstance(step, RandomCrop) else 0
            if not (0 < rows <= height + around and 0 < columns <= width + around):
                return None
            sizes.append((rows, columns))
        (rows, columns), samples = sizes[-1], value.shape[0]
        return sizes if samples * channels * rows * columns < _MOST_ELEMENTS else None

    def _made(
        self, value: torch.Tensor, sizes: list[tuple[int, int]], generator: torch.Generator | None
    ) -> torch.Tensor:
        (samples, channels, height, width), device = value.shape, value.device
        held: list[torch.Tensor] = []  # until the kernel is queued
        steps: list[int] = []
        for step, (rows, columns), after in zip(self._moves, sizes, sizes[1:], strict=False):
            steps += _words(step, value, (rows, columns), after, generator, held)
        dtype = self._normalize.result if self._normalize else value.dtype
        layout = torch.channels_last if self._last else torch.contiguous_format
        out = torch.empty((samples, channels, *sizes[-1]), dtype=dtype, device=device, memory_format=layout)
        table = self._table(value) if self._normalize else None
        params = [
            value.data_ptr(), out.data_ptr(), 0 if table is None else table.data_ptr(), samples, channels, height,
            width, *sizes[-1], len(self._moves), *steps,
            *[0] * (9 * (_MOST_STEPS - len(self._moves))),
        ]  # fmt: skip
        if value.dtype not in self._sources:
            self._sources[value.dtype] = self._source(value.dtype)
        made = kernel(self._sources[value.dtype], "transform", 1, IN_VRAM, device)
        launch(made, device, IN_VRAM, np.array(params, np.int64).view(np.uint64))
        return out

    def _source(self, dtype: torch.dtype) -> str:
        if self._normalize is None:
            word = _WORDS[dtype.itemsize]
            names = {"IN_T": word, "OUT_T": word, "LOAD": "return 0;", "STORE": "return 0;", "MADE": _COPIED}
        else:
            (given, load), (wanted, store) = _LOADS[dtype], STORES[self._normalize.result]
            names = {"IN_T": given, "OUT_T": wanted, "LOAD": load, "STORE": store, "MADE": _NORMALIZED}
        source = _SOURCE
        for name, text in {**names, "LAST": str(int(self._last)), "LINES": str(_LINES)}.items():
            source = source.replace(name, text)
        return source

    def _table(self, value: torch.Tensor) -> torch.Tensor:
        """Means and standard deviations of all channels, on the device of the images."""
        key = value.device, value.dtype
        if key not in self._tables and self._normalize is not None:
            table = self._normalize.table(value.dtype).expand(2, value.shape[1]).contiguous()
            self._tables[key] = table.to(value.device)
            torch.cuda.current_stream(value.device).synchronize()  # it is used on other streams, too
        return self._tables[key]


def _words(
    step: Any,
    value: torch.Tensor,
    before: tuple[int, int],
    after: tuple[int, int],
    generator: torch.Generator | None,
    held: list[torch.Tensor],
) -> list[int]:
    """A step as the kernel has it; tensors that it refers to are added to `held`."""
    (height, width), (rows, columns) = before, after
    if isinstance(step, RandomFlip):
        held.append(step.draw(value, generator))
        dims = {dim % 4 for dim in ((step.dims,) if isinstance(step.dims, int) else step.dims)}
        return [_FLIP, 0, 0, held[-1].data_ptr(), int(2 in dims), int(3 in dims), 0, height, width]
    if isinstance(step, RandomCrop):
        padded = height + 2 * step.padding, width + 2 * step.padding
        held += step.draw(value, padded, after, generator)
        top, left = held[-2].data_ptr(), held[-1].data_ptr()
        return [_CROP, top, left, 0, 0, 0, step.padding, height, width]
    return [_CROP, 0, 0, 0, round((height - rows) / 2), round((width - columns) / 2), 0, height, width]
