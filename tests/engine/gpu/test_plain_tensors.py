"""Whatever a batch is made of, all of its memory is found."""

from __future__ import annotations

import dataclasses
import types

import pytest
import torch
from torch.masked import masked_tensor
from torch.testing._internal.two_tensor import TwoTensor

from gdsload.engine.gpu.plain_tensors import tensors_of


def test_tensors_are_found_in_any_nest():
    @dataclasses.dataclass
    class Holder:
        value: object
        other: int = 5

    tensors = [torch.full((2,), number) for number in range(6)]
    jagged = torch.nested.nested_tensor_from_jagged(tensors[4], tensors[5])
    nest = {"a": [tensors[0], "text"], "b": (types.MappingProxyType({"c": tensors[1]}), None)}
    found = [*tensors_of([nest, Holder([tensors[2], tensors[3]]), jagged, Holder])]
    assert list(map(id, found[:4])) == list(map(id, tensors[:4]))
    assert len(found) == 6


PARTS = [torch.tensor([0, 2, 4]), torch.tensor([0, 1, 0, 1]), torch.rand(4)]
BLOCKS = [*PARTS[:2], torch.rand(4, 1, 1)]
JAGGED = torch.nested.nested_tensor_from_jagged
OTHERS = {
    "a parameter": ([torch.rand(3)], torch.nn.Parameter),
    "a tensor of tensors": ([torch.rand(3), torch.rand(3)], TwoTensor),
    "jagged": ([torch.rand(6), torch.tensor([0, 2, 6])], JAGGED),
    "jagged, with holes": (
        [torch.rand(6), torch.tensor([0, 3, 6]), torch.tensor([2, 1])],
        lambda values, offsets, lengths: JAGGED(values, offsets, lengths=lengths),
    ),
    "a tensor of those": (
        [torch.rand(3) for _ in range(4)],
        lambda *parts: TwoTensor(TwoTensor(*parts[:2]), TwoTensor(*parts[2:])),
    ),
    "coordinates": ([torch.tensor([[0, 1]]), torch.rand(2)], lambda *parts: torch.sparse_coo_tensor(*parts, (2,))),
    "rows": (PARTS, lambda *parts: torch.sparse_csr_tensor(*parts, (2, 2))),
    "columns": (PARTS, lambda *parts: torch.sparse_csc_tensor(*parts, (2, 2))),
    "blocks of rows": (BLOCKS, lambda *parts: torch.sparse_bsr_tensor(*parts, (2, 2))),
    "blocks of columns": (BLOCKS, lambda *parts: torch.sparse_bsc_tensor(*parts, (2, 2))),
}


@pytest.mark.filterwarnings("ignore")  # torch's, of prototypes
@pytest.mark.parametrize("name", OTHERS)
def test_parts_of_other_tensors(name):
    """All memory that a tensor is made of, and nothing that has none."""
    parts, make = OTHERS[name]
    found = tensors_of({"x": make(*parts)})
    assert {one.untyped_storage().data_ptr() for one in found} >= {one.untyped_storage().data_ptr() for one in parts}
    assert all(one.layout is torch.strided and not one.is_nested and one.data_ptr() for one in found)
    assert sum(one.nbytes for one in found) >= sum(one.nbytes for one in parts)


@pytest.mark.filterwarnings("ignore")
def test_a_nested_tensor_of_the_older_layout_has_one_buffer():
    (found,) = tensors_of(torch.nested.nested_tensor([torch.arange(3.0), torch.arange(2.0)]))
    assert found.tolist() == [0.0, 1.0, 2.0, 0.0, 1.0]


@pytest.mark.filterwarnings("ignore")
def test_a_masked_tensor_is_its_data_and_its_mask():
    data, mask = torch.rand(3), torch.tensor([True, False, True])
    first, second = tensors_of([masked_tensor(data, mask)])
    assert torch.equal(first, data)
    assert torch.equal(second, mask)
