"""The kernel that copies pieces of any length and alignment: ragged samples, and rows that are no whole words.

A thread makes an aligned word of 16 bytes of the target, of two aligned words of the source. Rows of a fixed size that
is no multiple of 16 bytes are pieces, too: copied by the largest words that divide them, of 1 to 8 bytes, they ask for
few bytes at once over the link (docs/design/0004).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from gdsload.kernels.launch import IN_VRAM, OVER_PCIE, WARP, Grid, kernel, launch
from gdsload.system.arrays import IntArray

_PIECES = r"""
typedef unsigned long long u64;

struct Params {
    const u64* __restrict__ sources;  // where each piece begins
    const u64* __restrict__ targets;  // where it goes
    const u64* __restrict__ bytes;    // how long it is
    const u64* __restrict__ ends;     // words of all the pieces up to it
    u64 last;                         // the number of the last piece
    u64 tile;                         // words that a warp copies at once
};

// A word with a wanted byte is read whole: memory is mapped in pages, so none ends within an aligned word.
__device__ __forceinline__ uint4 read(u64 word, u64 source, u64 bytes) {
    return word + 16 > source && word < source + bytes ? *(const uint4*)word : make_uint4(0, 0, 0, 0);
}

// The 16 bytes from byte `skip` of two words on.
__device__ __forceinline__ uint4 shifted(uint4 a, uint4 b, unsigned skip) {
    if (skip & 8) { a.x = a.z; a.y = a.w; a.z = b.x; a.w = b.y; b.x = b.z; b.y = b.w; }
    if (skip & 4) { a.x = a.y; a.y = a.z; a.z = a.w; a.w = b.x; b.x = b.y; }
    const unsigned bits = 8 * (skip & 3);
    return make_uint4(__funnelshift_r(a.x, a.y, bits), __funnelshift_r(a.y, a.z, bits),
                      __funnelshift_r(a.z, a.w, bits), __funnelshift_r(a.w, b.x, bits));
}

// A lane makes an aligned word of a target: of the aligned word that the source has for it, and of the next one, which
// the next lane has read. Where source and target are aligned differently, a piece has a word more, which is only read.
extern "C" __global__ void LAYOUT gather(const Params p) {
    const unsigned lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const u64 words = p.ends[p.last];
    u64 begin = ((u64)blockIdx.x * warps + threadIdx.x / 32) * p.tile;
    for (; begin < words; begin += (u64)gridDim.x * warps * p.tile) {
        const u64 end = min(begin + p.tile, words);
        u64 piece = 0, above = p.last;
        while (piece < above) {
            const u64 middle = (piece + above) / 2;
            if (p.ends[middle] <= begin) piece = middle + 1; else above = middle;
        }
        // From the tile's first piece on, each lane steps from piece to piece.
        u64 first = piece ? p.ends[piece - 1] : 0, stop = p.ends[piece];
        u64 source = p.sources[piece], target = p.targets[piece], bytes = p.bytes[piece];
        for (u64 i = begin + lane; i - lane < end; i += 32 * DEPTH) {
            uint4 found[DEPTH + 1];
            u64 place[DEPTH];
            unsigned skip[DEPTH], low[DEPTH], high[DEPTH];  // the bytes of a word from `low` to `high` - 1 are written
            found[DEPTH] = make_uint4(0, 0, 0, 0);
            #pragma unroll
            for (int k = 0; k < DEPTH; ++k) {
                found[k] = make_uint4(0, 0, 0, 0);
                place[k] = skip[k] = low[k] = high[k] = 0;
                if (i + 32 * k >= end) continue;
                while (i + 32 * k >= stop) {
                    first = stop;
                    stop = p.ends[++piece];
                    source = p.sources[piece];
                    target = p.targets[piece];
                    bytes = p.bytes[piece];
                }
                const u64 at = 16 * (i + 32 * k - first), to = target / 16 * 16 + at;
                const u64 from = source - target % 16 + at, word = from / 16 * 16;
                found[k] = read(word, source, bytes);
                if (k == DEPTH - 1 && lane == 31) found[DEPTH] = read(word + 16, source, bytes);
                place[k] = to;
                skip[k] = from % 16;
                low[k] = to < target ? target - to : 0;
                high[k] = to + 16 <= target + bytes ? 16 : to < target + bytes ? target + bytes - to : 0;
            }
            #pragma unroll
            for (int k = 0; k < DEPTH; ++k) {
                // The lane after the last one is the first, with its next word.
                const uint4 own = found[k], given = lane ? own : found[k + 1];
                uint4 next;
                next.x = __shfl_sync(0xffffffffu, given.x, (lane + 1) % 32);
                next.y = __shfl_sync(0xffffffffu, given.y, (lane + 1) % 32);
                next.z = __shfl_sync(0xffffffffu, given.z, (lane + 1) % 32);
                next.w = __shfl_sync(0xffffffffu, given.w, (lane + 1) % 32);
                if (k == DEPTH - 1 && lane == 31) next = found[DEPTH];
                const uint4 made = shifted(own, next, skip[k]);
                if (low[k] == 0 && high[k] == 16) { *(uint4*)place[k] = made; continue; }
                const unsigned parts[4] = {made.x, made.y, made.z, made.w};
                #pragma unroll
                for (unsigned b = 0; b < 16; ++b) {
                    if (low[k] <= b && b < high[k]) ((unsigned char*)place[k])[b] = parts[b / 4] >> 8 * (b % 4);
                }
            }
        }
    }
}
"""
_OVER_PCIE = replace(OVER_PCIE, blocks=8, depth=2)
"""To find them and to shift their bytes takes the time of twice as many multiprocessors (measured on an
H200; docs/design/0004)."""
_TILE = range(128, 1024)
"""Words of pieces that a warp copies at once, about, after a search for the piece of the first word."""
_SHORTEST_BYTES = 64
"""Bytes of a row from which it is copied as a piece: for a shorter one there is more to be found than to be copied."""


def as_pieces(unit: int, row_bytes: int) -> bool:
    """Return whether rows over the link are better copied as pieces; `unit` divides their addresses and bytes."""
    return unit < 16 and row_bytes >= _SHORTEST_BYTES


def table_of(sources: IntArray, targets: IntArray, nbytes: IntArray) -> IntArray:
    """The table of some pieces, none of them empty: where each begins and goes, its bytes, and all words up to it.

    It is int64, of shape ``[4, pieces]``.
    """
    table = np.empty((4, len(nbytes)), np.int64)
    table[0], table[1], table[2] = sources, targets, nbytes
    words = targets & 15
    words += nbytes
    words += 15
    words >>= 4
    words += (sources ^ targets) & 15 != 0
    words.cumsum(out=table[3])
    return table


def queue_pieces(
    table: torch.Tensor, words: int, device: torch.device, *, over_pcie: bool, grid: Grid | None = None
) -> None:
    """Queue the copying of about so many words of pieces on the current stream, on which the table stays until then.

    The grid is that of the kernel over the link; None for the one that is fastest.
    """
    layout, pieces = (grid or _OVER_PCIE) if over_pcie else IN_VRAM, table.shape[1]
    at_once = WARP * layout.depth  # a tile must end with the last word that its last lane reads at once
    tile = min(max(words // (4 * layout.warps), _TILE.start), _TILE.stop)
    columns = [table.data_ptr() + column * 8 * pieces for column in range(4)]
    params = np.array([*columns, pieces - 1, -(-tile // at_once) * at_once], np.uint64)
    launch(_compiled(device, layout), device, layout, params, over_pcie=over_pcie)


def compile_pieces(device: torch.device, *, over_pcie: bool) -> None:
    """Compile what `queue_pieces` queues."""
    _compiled(device, _OVER_PCIE if over_pcie else IN_VRAM)


def _compiled(device: torch.device, layout: Grid) -> int:
    return kernel(_PIECES, "gather", 16, layout, device)
