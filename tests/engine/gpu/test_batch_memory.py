"""Memory of the batches of a group: shared by small ones, and still each one's own."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gdsload import Field
from gdsload.engine.gpu import batch_memory
from gdsload.engine.gpu.batch_memory import SHARED_BYTES, batch_tensors

CPU = torch.device("cpu")
FIELDS = st.builds(
    Field,
    st.sampled_from(["uint8", "int16", "float32", "int64", "bfloat16"]),
    st.lists(st.integers(0, 40), max_size=2).map(tuple),
)


def memories(tensors):
    """The addresses of the allocations."""
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}


@given(counts=st.lists(st.integers(0, 300), max_size=12), field=FIELDS, shared=st.sampled_from([0, 4096, SHARED_BYTES]))
def test_batches_are_each_ones_own(counts, field, shared):
    """Of the shapes asked for, aligned, apart from one another, and nobody's view."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(batch_memory, "SHARED_BYTES", shared)
        found = batch_tensors(counts, field, CPU)
    assert [tuple(tensor.shape) for tensor in found] == [(count, *field.row_shape) for count in counts]
    spans = []
    for tensor in found:
        assert tensor.is_contiguous()
        assert not tensor._is_view()
        if tensor.numel():
            assert tensor.storage_offset() * tensor.element_size() % 512 == 0
            spans.append((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes))
        memory = tensor.untyped_storage().nbytes()
        assert memory <= shared or memory <= tensor.nbytes, "only what shares has room for others"
    spans.sort()
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


@pytest.mark.parametrize(
    ("counts", "field", "memory"),
    [
        ([2048] * 14, Field("uint8", (4096,)), 4),
        ([256_000] * 128, Field("int32", ()), 4),
        ([255_999, 1, 256_001], Field("int32", ()), 1),
        ([256] * 3, Field("uint8", (3, 224, 224)), 3),
        ([16] * 3, Field("uint8", (2**20,)), 2),
        ([256] * 8, Field("uint8", (1001,)), 8),
        ([5], Field("uint8", (4096,)), 1),
    ],
    ids=["rows", "tokens", "of other lengths", "images", "two at a time", "rows that are seldom aligned", "one"],
)
def test_small_batches_share_memory(counts, field, memory):
    found = batch_tensors(counts, field, CPU)
    assert len(memories(found)) == memory
    if memory == len(counts):
        assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in found)


def test_what_is_done_in_place_to_a_batch_concerns_no_other():
    """As of views of one tensor it would, for autograd."""
    first, second = batch_tensors([128, 128], Field("float32", ()), CPU)
    assert memories([first]) == memories([second])
    second.zero_()
    first.fill_(1).mul_(torch.ones((), requires_grad=True))
    assert (first.requires_grad, second.requires_grad) == (True, False)
    assert not second.any()
