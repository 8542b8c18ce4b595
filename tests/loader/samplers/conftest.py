"""Loaders over samplers."""

import pytest

import gdsload


@pytest.fixture
def make(plain):
    """Makes loaders that give the samples' indices; the caller closes them."""
    return lambda batch_size=1, **options: gdsload.DataLoader(
        plain, batch_size, device="cpu", **{"with_index": True, **options}
    )
