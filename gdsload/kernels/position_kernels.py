"""CUDA sources of the gather from positions, and of the permutation under it."""

MOST_BATCHES = 256
"""Batches of one launch: the length of `out` in the kernels."""
WORDS = (
    *("network", "table", "selection", "ends", "origins", "runs", "row_bytes", "width"),
    *("first", "stride", "words", "tile", "tiles", "all", "places", "size", "pieces"),
)
"""The kernels' `Params`, but for `out`, which comes last."""
PERMUTATION = r"""
typedef unsigned long long u64;
typedef long long i64;

__device__ __forceinline__ u64 hashed(u64 value, u64 key) {
    value = value * 0x9E3779B97F4A7C15ull + key;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
    return value ^ (value >> 31);
}

// network: numbers, size of the left half, of the right half, and the key of each of 8 rounds
__device__ u64 permuted(u64 value, const u64* network) {
    const u64 n = network[0], size_left = network[1], size_right = network[2];
    do {
        u64 right = value / size_left, left = value - right * size_left;
        #pragma unroll
        for (int k = 0; k < 8; k += 2) {
            left += ((hashed(right, network[3 + k]) >> 24) * size_left) >> 40;
            if (left >= size_left) left -= size_left;
            right += ((hashed(left, network[4 + k]) >> 24) * size_right) >> 40;
            if (right >= size_right) right -= size_right;
        }
        value = right * size_left + left;
    } while (value >= n);
    return value;
}
"""
"""CUDA source of `permuted`, the twin of `gdsload.order.feistel.Feistel`, and of the hash under it."""
_GATHER = r"""
struct Params {
    const u64* network;    // all 0 where there is none; see WORDS
    const i64* table;
    const i64* selection;
    const i64* ends;       // of the shards, or other runs, in samples
    const i64* origins;    // of the same: where sample 0 would be
    u64 runs, row_bytes, width;
    u64 first, stride;     // first position of the first batch, and from batch to batch
    u64 words, tile;       // of a batch and of a tile, in words
    u64 tiles, all;        // of a batch, and of all batches
    const i64* places;     // of the rows in all batches, where they come in another order
    u64 size;              // rows of a batch
    u64* pieces;           // the table of the kernel `pieces`
    WORD* out[MOST_BATCHES];
};

__device__ __forceinline__ u64 sample(const Params& p, u64 position) {
    u64 id = position;
    if (p.network) id = permuted(id, p.network);
    else if (p.table) id = p.table[id];
    return p.selection ? p.selection[id] : id;
}

__device__ __forceinline__ u64 address(const Params& p, u64 position) {
    const u64 id = sample(p, position);
    unsigned below = 0, above = p.runs;
    while (below < above) {
        const unsigned middle = (below + above) / 2;
        if ((u64)p.ends[middle] <= id) below = middle + 1; else above = middle;
    }
    return p.origins[below] + id * p.row_bytes;
}

// Here a word is a sample's number, and all batches follow each other.
extern "C" __global__ void LAYOUT samples(const Params p) {
    const u64 threads = (u64)gridDim.x * blockDim.x;
    for (u64 number = (u64)blockIdx.x * blockDim.x + threadIdx.x; number < p.all; number += threads) {
        const u64 batch = number / p.size;
        ((u64*)p.out[0])[number] = sample(p, p.first + batch * p.stride + number - batch * p.size);
    }
}

// Here each row becomes a piece, for the kernel of gather_pieces; the last column of the table is summed up later.
extern "C" __global__ void LAYOUT pieces(const Params p) {
    const u64 threads = (u64)gridDim.x * blockDim.x;
    for (u64 number = (u64)blockIdx.x * blockDim.x + threadIdx.x; number < p.all; number += threads) {
        const u64 batch = number / p.size, place = p.places ? (u64)p.places[number] : number, into = place / p.size;
        const u64 source = address(p, p.first + batch * p.stride + number - batch * p.size);
        const u64 target = (u64)p.out[into] + (place - into * p.size) * p.row_bytes;
        u64* const column = p.pieces + number;
        column[0] = source;
        column[p.all] = target;
        column[2 * p.all] = p.row_bytes;
        column[3 * p.all] = (target % 16 + p.row_bytes + 15) / 16 + ((source ^ target) % 16 != 0);
    }
}

extern "C" __global__ void LAYOUT gather(const Params p) {
    const unsigned lane = threadIdx.x % 32, width = p.width;
    const unsigned down = 32 / width, right = 32 - down * width;
    const u64 step = (u64)gridDim.x * (blockDim.x / 32);
    for (u64 number = (u64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; number < p.all; number += step) {
        const u64 batch = number / p.tiles, begin = (number - batch * p.tiles) * p.tile, low = begin / width;
        const unsigned words = (unsigned)min(p.tile, p.words - begin), within = (unsigned)(begin - low * width);
        const u64 row = low * width + (u64)lane * width < begin + words
            ? address(p, p.first + batch * p.stride + low + lane) : 0;
        #if SCATTERED
        u64 place = 0;
        if (row) {
            const u64 among_all = p.places[low + lane], b = among_all / p.size;
            place = (u64)(p.out[b] + (among_all - b * p.size) * width);
        }
        #else
        WORD* const target = p.out[batch] + begin;
        #endif
        unsigned t = (within + lane) / width, column = within + lane - t * width;
        for (unsigned i = lane; i - lane < words; i += 32 * DEPTH) {
            WORD found[DEPTH];
            #if SCATTERED
            WORD* into[DEPTH];
            #endif
            #pragma unroll
            for (int k = 0; k < DEPTH; ++k) {
                #if SCATTERED
                into[k] = (WORD*)__shfl_sync(0xffffffffu, place, t) + column;
                #endif
                const WORD* const source = (const WORD*)__shfl_sync(0xffffffffu, row, t);
                if (i + 32 * k < words) found[k] = source[column];
                t += down;
                column += right;
                if (column >= width) { column -= width; ++t; }
            }
            #pragma unroll
            for (int k = 0; k < DEPTH; ++k) if (i + 32 * k < words) {
                #if SCATTERED
                *into[k] = found[k];
                #else
                target[i + 32 * k] = found[k];
                #endif
            }
        }
    }
}
"""


SOURCES = tuple(
    f"#define SCATTERED {scattered}\n#define MOST_BATCHES {MOST_BATCHES}\n{PERMUTATION}{_GATHER}"
    for scattered in (0, 1)
)
"""The first for rows that are fetched in the order of the batch, the second for those fetched in another order."""
