"""The rates at which a GPU copies registered pages of a file, and pinned memory."""

import mmap
import os

import numpy as np
import pytest
import torch

from gdsload.system.mapped_rate import TRIED_BYTES, copy_rates, is_coherent, slow_pages
from gdsload.system.streams import register_host, unregister_host

pytestmark = pytest.mark.cuda


def test_pages_of_a_file_are_copied_about_as_fast_as_pinned_memory(tmp_path):
    """But for GPUs whose memory is coherent with the CPU's, such as GB10."""
    device = torch.device("cuda", torch.cuda.current_device())
    (tmp_path / "file").write_bytes(os.urandom(TRIED_BYTES))
    with open(tmp_path / "file", "rb") as file:
        mapped = mmap.mmap(file.fileno(), TRIED_BYTES, prot=mmap.PROT_READ)
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    if trouble := register_host(device, address, TRIED_BYTES, read_only=True):
        pytest.skip(trouble)
    try:
        rates = copy_rates(device, address, TRIED_BYTES)
        trouble = slow_pages(device, address, TRIED_BYTES)
    finally:
        unregister_host(device, address)
    assert all(1e8 < rate < 1e12 for rate in rates)
    if not is_coherent(device):
        assert (trouble, rates[0] > rates[1] / 4) == ("", True)
