"""The source of the kernel, compiled for the CPU: its checksums are those of xxhash, whatever the alignment."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from gdsload.kernels.checksums import CHECKSUMS
from gdsload.shards.format.checksum import BLOCK_BYTES

THREADS = 8
"""The fewest with which the kernel can run: each is a thread of the CPU."""
SHIMS = r"""
#include <barrier>
#include <thread>
#include <vector>
#define __device__
#define __constant__
#define __global__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static
#define LAYOUT
struct Place { unsigned x; };
struct ulonglong2 { unsigned long long x, y; };
static const Place blockIdx{0}, gridDim{1}, blockDim{THREADS};
static thread_local Place threadIdx;
static std::barrier<> together{THREADS};
static void __syncthreads() { together.arrive_and_wait(); }
static unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned __int128)a * b >> 64;
}
"""
CALL = r"""
extern "C" void run(const u64* begins, const u64* bytes, u64* digests, u64 count) {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < THREADS; ++i) {
        threads.emplace_back([=] { threadIdx.x = i; checksums({begins, bytes, digests, count}); });
    }
    for (auto& one : threads) one.join();
}
"""


@pytest.fixture(scope="module")
def digests(tmp_path_factory):
    """Runs the kernel on the CPU: the checksums of inputs, by their addresses and lengths."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    folder = tmp_path_factory.mktemp("kernel")
    source, library = folder / "kernel.cpp", folder / "kernel.so"
    source.write_text(f"#define THREADS {THREADS}\n" + SHIMS + CHECKSUMS + CALL)
    command = [compiler, "-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-pthread", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    run = ctypes.CDLL(str(library)).run

    def digests(addresses, nbytes):
        found = np.empty(len(addresses), np.uint64)
        arrays = np.array(addresses, np.uint64), np.array(nbytes, np.uint64), found
        run(*(array.ctypes.data_as(ctypes.c_void_p) for array in arrays), ctypes.c_uint64(len(addresses)))
        return found.tolist()

    return digests


def test_every_short_length_at_every_alignment(digests):
    data = np.random.default_rng(0).integers(0, 256, 2048 + 16, dtype=np.uint8)
    cases = [(length % 16 if length > 256 else start, length) for length in range(2049) for start in range(16)]
    cases = sorted(set(cases))
    found = digests([data.ctypes.data + start for start, _ in cases], [length for _, length in cases])
    assert found == [xxhash.xxh3_64_intdigest(data[start : start + length]) for start, length in cases]


@given(length=st.integers(0, BLOCK_BYTES), start=st.integers(0, 16), seed=st.integers(0, 2**32))
def test_any_length_up_to_a_block(digests, length, start, seed):
    data = np.random.default_rng(seed).integers(0, 256, start + length, dtype=np.uint8)
    assert digests([data.ctypes.data + start], [length]) == [xxhash.xxh3_64_intdigest(data[start:])]


def test_a_whole_block_and_its_neighbours(digests):
    data = np.random.default_rng(1).integers(0, 256, 3 * BLOCK_BYTES, dtype=np.uint8)
    cases = [(start, BLOCK_BYTES - less) for start in (0, BLOCK_BYTES, 8, 7) for less in (0, 1, 63, 64, 1023, 1024)]
    found = digests([data.ctypes.data + start for start, _ in cases], [length for _, length in cases])
    assert found == [xxhash.xxh3_64_intdigest(data[start : start + length]) for start, length in cases]
