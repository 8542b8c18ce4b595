"""The use of a file's pages for a GPU, by its rates."""

import pytest
import torch

from gdsload.system import mapped_rate

DEVICE = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("coherent", "rates", "says"),
    [
        (True, (0.25e9, 22e9), "the GPU copies mapped pages at 0.25 GB/s and pinned memory at 22 GB/s"),
        (True, (14e9, 55e9), ""),
        (False, (0.25e9, 22e9), ""),
    ],
)
def test_mapped_pages_are_slow_only_where_memory_is_coherent(monkeypatch, coherent, rates, says):
    sizes = []
    monkeypatch.setattr(mapped_rate, "is_coherent", lambda _device: coherent)
    monkeypatch.setattr(mapped_rate, "copy_rates", lambda _device, _address, nbytes: sizes.append(nbytes) or rates)
    assert mapped_rate.slow_pages(DEVICE, 4096, 2**30) == says
    assert sizes == [mapped_rate.TRIED_BYTES] * coherent
