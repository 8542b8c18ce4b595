"""Indices that samplers give as arrays, tensors and lists: what cannot be an index is refused by the name it has."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gdsload import OptionError, SampleIndexError


class TestLarge:
    @pytest.mark.parametrize("number", [2**64 - 1, 2**63])
    @pytest.mark.parametrize("form", [lambda given: np.array(given, "u8"), lambda given: torch.tensor(given, dtype=torch.uint64)])  # fmt: skip
    def test_the_error_names_the_number_that_was_given(self, load, plain, form, number):
        with pytest.raises(SampleIndexError, match=f"sampler gave index {number}, but"):
            load(plain, 2, sampler=form([3, number]))
        with pytest.raises(SampleIndexError, match=f"batch_sampler gave index {number}, but"):
            list(load(plain, batch_sampler=[form([3, number])]))


@pytest.mark.parametrize("form", [list, tuple, lambda mask: [*np.array(mask)], lambda mask: [*torch.tensor(mask)]])
@pytest.mark.parametrize("batched", [False, True])
def test_a_mask_holds_no_indices(load, plain, form, batched):
    given = {"batch_sampler": [form([False, True])]} if batched else {"batch_size": 2, "sampler": form([False, True])}
    with pytest.raises(OptionError, match="gave .* as of a mask, which is no whole number"):
        list(load(plain, **given))
