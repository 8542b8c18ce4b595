"""The kernel that computes checksums of bytes in the GPU's memory, as `shards.format.checksum`: XXH3-64 with seed 0.

The algorithm is that of https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md. A long input is a chain of
kilobytes, but each of them adds sums to the eight accumulators that depend on no other kilobyte. So all threads of a
block make the sums of an input first. Eight of them then make the chain: one addition and one scramble for each
kilobyte, of which a block of a shard has 256. Meanwhile other blocks of the multiprocessor read.
"""

from __future__ import annotations

import numpy as np
import torch

from gdsload.kernels.launch import IN_VRAM, kernel, launch
from gdsload.shards.format.checksum import BLOCK_BYTES
from gdsload.system.arrays import IntArray

CHECKSUMS = r"""
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

struct Params {
    const u64* __restrict__ begins;  // the address of each input, of any alignment
    const u64* __restrict__ bytes;   // its length, MOST_BYTES at most
    u64* __restrict__ digests;
    u64 count;
};

__constant__ u64 SECRET[24] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072, 0x78e5c0cc4ee679cb,
    0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0, 0xcb00c391bb52283c, 0xa32e531b8b65d088,
    0x4ef90da297486471, 0xd8acdea946ef1938, 0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a,
    0x647378d9c97e9fc8, 0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af,
};
const u64 P32_1 = 0x9E3779B1, P32_2 = 0x85EBCA77, P32_3 = 0xC2B2AE3D, P64_1 = 0x9E3779B185EBCA87,
    P64_2 = 0xC2B2AE3D27D4EB4F, P64_3 = 0x165667B19E3779F9, P64_4 = 0x85EBCA77C2B2AE63, P64_5 = 0x27D4EB2F165667C5;
__constant__ u64 FIRST[8] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};

// Eight bytes at any address, of the aligned words that hold one of them: no page is touched that has none.
__device__ __forceinline__ u64 word(const u8* p) {
    const u32 skip = (u64)p & 7;
    const u64* at = (const u64*)(p - skip);
    return skip ? at[0] >> 8 * skip | at[1] << (64 - 8 * skip) : at[0];
}
__device__ __forceinline__ u64 four(const u8* p) { return p[0] | p[1] << 8 | p[2] << 16 | (u64)p[3] << 24; }
__device__ __forceinline__ u64 secret(u32 byte) {
    const u32 skip = byte & 7, at = byte / 8;
    return skip ? SECRET[at] >> 8 * skip | SECRET[at + 1] << (64 - 8 * skip) : SECRET[at];
}
__device__ __forceinline__ u64 turned(u64 h, int by) { return h << by | h >> (64 - by); }
__device__ __forceinline__ u64 swapped(u64 h) {
    h = (h & 0x00ff00ff00ff00ff) << 8 | (h >> 8 & 0x00ff00ff00ff00ff);
    h = (h & 0x0000ffff0000ffff) << 16 | (h >> 16 & 0x0000ffff0000ffff);
    return h << 32 | h >> 32;
}
__device__ __forceinline__ u64 folded(u64 a, u64 b) { return a * b ^ __umul64hi(a, b); }
__device__ __forceinline__ u64 product(u64 key) { return (key & 0xffffffff) * (key >> 32); }
__device__ __forceinline__ u64 avalanche(u64 h) {
    h = (h ^ h >> 37) * 0x165667919E3779F9;
    return h ^ h >> 32;
}
__device__ __forceinline__ u64 avalanche_64(u64 h) {
    h = (h ^ h >> 33) * P64_2;
    h = (h ^ h >> 29) * P64_3;
    return h ^ h >> 32;
}
__device__ __forceinline__ u64 mixed(const u8* p, u32 byte) {
    return folded(word(p) ^ secret(byte), word(p + 8) ^ secret(byte + 8));
}

// Inputs of 240 bytes at most, by one thread.
__device__ u64 of_short(const u8* p, u32 n) {
    if (n == 0) return avalanche_64(secret(56) ^ secret(64));
    if (n <= 3) {
        const u32 all = (u32)p[0] << 16 | (u32)p[n / 2] << 24 | p[n - 1] | n << 8;
        return avalanche_64(all ^ (u32)(secret(0) ^ secret(4)));
    }
    if (n <= 8) {
        u64 h = four(p + n - 4) + (four(p) << 32) ^ secret(8) ^ secret(16);
        h = (h ^ turned(h, 49) ^ turned(h, 24)) * 0x9FB21C651E98DF25;
        h = (h ^ (h >> 35) + n) * 0x9FB21C651E98DF25;
        return h ^ h >> 28;
    }
    if (n <= 16) {
        const u64 low = word(p) ^ secret(24) ^ secret(32), high = word(p + n - 8) ^ secret(40) ^ secret(48);
        return avalanche(n + swapped(low) + high + folded(low, high));
    }
    u64 h = n * P64_1;
    if (n <= 128) {
        for (u32 i = 0; 32 * i < n; ++i) h += mixed(p + 16 * i, 32 * i) + mixed(p + n - 16 * (i + 1), 32 * i + 16);
        return avalanche(h);
    }
    for (u32 i = 0; i < 8; ++i) h += mixed(p + 16 * i, 16 * i);
    h = avalanche(h);
    for (u32 i = 8; i < n / 16; ++i) h += mixed(p + 16 * i, 16 * (i - 8) + 3);
    return avalanche(h + mixed(p + n - 16, 119));
}

// A thread adds up two neighbouring lanes of a kilobyte: four threads read the 64 bytes of each of its stripes.
extern "C" __global__ void LAYOUT checksums(const Params p) {
    __shared__ u64 sums[MOST_BYTES / 1024][8];
    const u32 pair = threadIdx.x % 4;
    u64 keys[17];
    #pragma unroll
    for (u32 i = 0; i < 17; ++i) keys[i] = SECRET[2 * pair + i];
    for (u64 at = blockIdx.x; at < p.count; at += gridDim.x) {
        const u8* input = (const u8*)p.begins[at];
        const u32 n = p.bytes[at];
        if (n <= 240) {
            if (threadIdx.x == 0) p.digests[at] = of_short(input, n);
            continue;
        }
        const u32 last = (n - 1) / 1024, stripes = (n - 1) % 1024 / 64;  // the last kilobyte, and its whole stripes
        const bool aligned = (u64)input % 16 == 0;
        for (u32 part = threadIdx.x / 4; part <= last; part += blockDim.x / 4) {
            const u8* from = input + 1024 * part + 16 * pair;
            u64 even = 0, odd = 0;
            if (part < last && aligned) {
                ulonglong2 two[16];  // all are requested before the first is waited for
                #pragma unroll
                for (u32 i = 0; i < 16; ++i) two[i] = *(const ulonglong2*)(from + 64 * i);
                #pragma unroll
                for (u32 i = 0; i < 16; ++i) {
                    even += two[i].y + product(two[i].x ^ keys[i]);
                    odd += two[i].x + product(two[i].y ^ keys[i + 1]);
                }
            } else {
                for (u32 i = 0; i < (part < last ? 16 : stripes); ++i) {
                    const u64 x = word(from + 64 * i), y = word(from + 64 * i + 8);
                    even += y + product(x ^ SECRET[2 * pair + i]);
                    odd += x + product(y ^ SECRET[2 * pair + i + 1]);
                }
            }
            if (part == last) {  // and the last 64 bytes, some of which it may have added up already
                const u8* end = input + n - 64 + 16 * pair;
                const u64 x = word(end), y = word(end + 8);
                even += y + product(x ^ secret(121 + 16 * pair));
                odd += x + product(y ^ secret(129 + 16 * pair));
            }
            sums[part][2 * pair] = even;
            sums[part][2 * pair + 1] = odd;
        }
        __syncthreads();
        if (threadIdx.x < 8) {
            const u64 key = SECRET[16 + threadIdx.x];
            u64 lane = FIRST[threadIdx.x];
            for (u32 part = 0; part < last; ++part) {
                lane += sums[part][threadIdx.x];
                lane = (lane ^ lane >> 47 ^ key) * P32_1;
            }
            sums[last][threadIdx.x] += lane;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            const u64* lanes = sums[last];
            u64 h = n * P64_1;
            for (u32 i = 0; i < 4; ++i) {
                h += folded(lanes[2 * i] ^ secret(11 + 16 * i), lanes[2 * i + 1] ^ secret(19 + 16 * i));
            }
            p.digests[at] = avalanche(h);
        }
        __syncthreads();  // the sums of the next input go to the same place
    }
}
""".replace("MOST_BYTES", str(BLOCK_BYTES))


def queue_checksums(addresses: IntArray, nbytes: IntArray, device: torch.device) -> torch.Tensor:
    """Queue the checksums of bytes that the device can address, on the current stream.

    Args:
        addresses: where each input begins.
        nbytes: its length, from 0 to `BLOCK_BYTES`.
        device: the device, with an index.

    Returns:
        The checksums, int64 ``[inputs]`` on the device: the bits of unsigned numbers.
    """
    table = torch.from_numpy(np.stack([addresses, nbytes])).to(device)
    made = torch.empty(len(addresses), dtype=torch.int64, device=device)
    params = np.array([table[0].data_ptr(), table[1].data_ptr(), made.data_ptr(), len(addresses)], np.uint64)
    launch(kernel(CHECKSUMS, "checksums", 16, IN_VRAM, device), device, IN_VRAM, params)
    return made
