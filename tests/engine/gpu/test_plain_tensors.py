"""All memory of a batch is found, for any types in it."""

from __future__ import annotations

import dataclasses
import types

import pytest
import torch
from torch.masked import masked_tensor
from torch.testing._internal.logging_tensor import LoggingTensor
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
@pytest.mark.parametrize(
    ("sparse", "count"),
    [(lambda x: x, 2), (torch.Tensor.to_sparse, 4), (torch.Tensor.to_sparse_csr, 6)],
)
def test_a_masked_tensor_is_its_data_and_its_mask(sparse, count):
    data, mask = torch.rand(2, 2), torch.ones(2, 2, dtype=torch.bool)
    found = tensors_of([masked_tensor(sparse(data), sparse(mask))])
    assert len(found) == count
    assert sum(torch.equal(one.flatten(), data.flatten()) for one in found) == 1
    assert all(type(one) is torch.Tensor and one.data_ptr() for one in found)


class Dispatched(torch.Tensor):
    """Memory of its own, and operations of its own."""

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} is not for the loader")


class Flattened(LoggingTensor):
    """A part that is computed."""

    def __tensor_flatten__(self):
        return ["hidden"], None

    @staticmethod
    def __tensor_unflatten__(inner, _context, *_size):
        return Flattened(inner["hidden"])

    @property
    def hidden(self):
        return self.elem[0]


class Compressed(Flattened):
    """Its part is another tensor each time that it is asked for."""

    @property
    def hidden(self):
        return self.elem[0].to_sparse()


def test_parts_that_are_made_for_the_asking_are_told_apart():
    """A part of one tensor may be freed before the next is asked, whose part may then have the same address."""
    many = [Compressed(torch.rand(2, 3)) for _ in range(20)]
    found = tensors_of(many)
    assert len(found) == 20 * len(tensors_of(many[0])) == 40


def test_subclasses_with_operations_of_their_own():
    """Of those with memory it is theirs, of others their parts'; what has neither is for torch to refuse."""
    plain = torch.rand(3)
    own = plain.as_subclass(Dispatched)
    assert [one is own for one in tensors_of(own)] == [True]
    own.more = [own]  # a circle
    own.part = torch.rand(2)
    assert [id(one) for one in tensors_of(own)] == [id(own.part), id(own)]
    own.part = torch.rand(2).as_subclass(Dispatched)
    own.part.whole = own.own = own
    assert [id(one) for one in tensors_of(own)] == [id(own.part), id(own)]
    (found,) = tensors_of(LoggingTensor(plain))
    assert found is plain
    (found,) = tensors_of(Flattened(torch.rand(2, 3)))
    assert found.shape == (3,)
    unknown = LoggingTensor(plain)
    unknown.elem, unknown.me = None, unknown
    (found,) = tensors_of(unknown)
    with pytest.raises(RuntimeError):
        found.untyped_storage().data_ptr()
