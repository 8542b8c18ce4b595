"""Samples from one byte to 128 MiB, with every default as it is: also where bytes are read into an arena."""

import json
import os
import tracemalloc
from itertools import islice

import pytest
import torch


@pytest.fixture
def sparse(tmp_path):
    """A safetensors file of samples of uint8, nearly all of it a hole: what makes it, and the first byte of samples."""

    def make(samples, sample_bytes):
        stride = -(-samples // 500)
        path = tmp_path / "sparse.safetensors"
        entry = {"dtype": "U8", "shape": [samples, sample_bytes], "data_offsets": [0, samples * sample_bytes]}
        header = json.dumps({"x": entry}).encode()
        with open(path, "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            begin = file.tell()
            file.truncate(begin + samples * sample_bytes)
            for number in range(0, samples, stride):
                os.pwrite(file.fileno(), bytes([number // stride % 255 + 1]), begin + number * sample_bytes)

        def first_bytes(index):
            return torch.where(index % stride == 0, index // stride % 255 + 1, 0).to(torch.uint8)

        return path, first_bytes

    return make


@pytest.mark.parametrize(
    ("samples", "sample_bytes", "batch_size"),
    [(3 * 10**9, 1, 5000), (700_000, 1024, 5000), (400, 3 << 20, 4), (5, 128 << 20, 1)],
    ids=["1 B", "1 KiB", "3 MiB", "128 MiB"],
)
def test_by_default_blocks_of_every_size_are_shuffled(load, sparse, samples, sample_bytes, batch_size):
    path, first_bytes = sparse(samples, sample_bytes)
    loader = load(path, batch_size, "block", mmap=False, with_index=True)
    seen = []
    for batch in islice(loader, 4):
        assert batch["x"].shape == (batch_size, sample_bytes)
        assert torch.equal(batch["x"][:, 0], first_bytes(batch["index"]))
        seen += batch["index"].tolist()
    assert len(set(seen)) == len(seen)
    assert seen != sorted(seen)


def test_what_is_kept_of_small_samples_takes_little_memory(load, sparse):
    path, _ = sparse(10**9, 1)
    loader = load(path, 256, "block", mmap=False)
    tracemalloc.start()
    batches = iter(loader)
    try:
        next(batches)
        _, most = tracemalloc.get_traced_memory()
    finally:
        loader.close()  # Python 3.12 may crash where threads run on while this stops: python/cpython#128679
        tracemalloc.stop()
    assert most < 128 << 20
