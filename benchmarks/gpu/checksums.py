"""The speed of the checksums of bytes in the GPU's memory: `python -m benchmarks.gpu.checksums`.

For reads of several sizes, in whole blocks of 256 KiB as `verify="all"` compares them: the bytes a second of a call of
`queue_checksums` and of the copy of its answer, the median and quartiles of 20. Before, the checksums of 64 MiB are
compared with xxhash's. The exit code is 1 if one is wrong, or if the largest read has less than 200 GB/s.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
import xxhash

from gdsload.kernels.checksums import queue_checksums
from gdsload.shards.format.checksum import BLOCK_BYTES

_SIZES = (2**20, 2**23, 2**26, 2**29, 2**32)
_COMPARED, _RUNS, _LEAST = 2**26, 20, 200e9


def main() -> int:
    """Print a line for each size."""
    device = torch.device("cuda", 0)
    data = torch.randint(0, 256, (_SIZES[-1],), dtype=torch.uint8, device=device)
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}")
    speed = 0.0
    for nbytes in _SIZES:
        addresses = data.data_ptr() + np.arange(0, nbytes, BLOCK_BYTES)
        lengths = np.full(len(addresses), BLOCK_BYTES)
        made = queue_checksums(addresses, lengths, device).cpu().numpy().view(np.uint64)
        blocks = data[: min(nbytes, _COMPARED)].cpu().numpy().reshape(-1, BLOCK_BYTES)
        if made[: len(blocks)].tolist() != [xxhash.xxh3_64_intdigest(block.data) for block in blocks]:
            print("the kernel's checksums are wrong")
            return 1
        seconds = []
        for _ in range(_RUNS):
            began = time.perf_counter()
            queue_checksums(addresses, lengths, device).cpu()
            seconds.append(time.perf_counter() - began)
        low, speed, high = nbytes / np.quantile(seconds, [0.75, 0.5, 0.25])
        print(f"{nbytes // 2**20:5} MiB: {speed / 1e9:.0f} GB/s ({low / 1e9:.0f} to {high / 1e9:.0f})")
    return int(speed < _LEAST)


if __name__ == "__main__":
    sys.exit(main())
