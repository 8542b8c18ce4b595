"""Nested tensors made of torch's class are those that its public function makes."""

import copy
import io

import pytest
import torch

from gdsload.engine import jagged
from gdsload.engine.jagged import by_class, by_public_function, jagged_parts

LENGTHS = [[3, 1, 2], [4], [0, 5, 0], [0, 0], []]


def parts(lengths, dtype=torch.float32, shape=(2,)):
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    values = torch.arange(sum(lengths) * torch.Size(shape).numel()).to(dtype).view(sum(lengths), *shape)
    return values, offsets, min(lengths, default=0), max(lengths, default=0)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("shape", [(), (2,), (3, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
def test_it_is_the_public_functions(lengths, shape, dtype):
    given = parts(lengths, dtype, shape)
    mine, public = by_class(*given), by_public_function(*given)
    assert type(mine) is type(public)
    assert (mine.shape, mine.stride(), mine.layout, mine.dtype) == (
        public.shape, public.stride(), public.layout, public.dtype
    )  # fmt: skip
    assert (mine._get_min_seqlen(), mine._get_max_seqlen()) == (public._get_min_seqlen(), public._get_max_seqlen())
    assert torch.equal(mine.values(), public.values())
    assert torch.equal(mine.offsets(), public.offsets())
    assert [row.tolist() for row in mine.unbind()] == [row.tolist() for row in public.unbind()]
    if lengths and dtype == torch.float32:
        assert torch.equal(mine.to_padded_tensor(-1.0), public.to_padded_tensor(-1.0))


def test_what_training_does_with_it():
    make, (values, *rest) = by_class, parts([3, 1, 2])
    weight = torch.full((2, 4), 0.5, requires_grad=True)
    nested = make(values, *rest)
    (nested @ weight + torch.nn.functional.relu(nested).sum()).values().sum().backward()
    assert weight.grad.tolist() == [[30.0] * 4, [36.0] * 4]
    other = make(values + 1, *rest)  # of the same offsets: of the same shape
    assert (nested + other).values().tolist() == (2 * values + 1).tolist()
    assert nested.requires_grad_().is_leaf


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch's own
def test_it_is_compiled_no_more_often():
    """Fields of equal and of other lengths, of one sample, and of lengths that come again."""
    from torch._dynamo.testing import CompileCounter

    counts = []
    for make in (by_class, by_public_function):
        torch.compiler.reset()
        counter = CompileCounter()
        function = torch.compile(lambda one, other: (one * 2).sin() + other.sum(), backend=counter, fullgraph=True)
        for lengths, others in ([3, 1, 2], [3, 1, 2]), ([1, 1, 7], [1, 5, 1]), ([4, 4], [4, 4]), ([3, 1, 2], [1, 9, 2]):
            one, other = make(*parts(lengths)), make(*parts(others))
            assert torch.equal(function(one, other).values(), (one.values() * 2).sin() + other.values().sum())
        counts.append(counter.frame_count)
    assert 0 < counts[0] <= counts[1]


def test_copies():
    nested, file = by_class(*parts([3, 1, 2])), io.BytesIO()
    torch.save(nested, file)
    file.seek(0)
    for found in (torch.load(file, weights_only=False), copy.deepcopy(nested), nested.clone(), nested.to("cpu")):
        assert torch.equal(found.values(), nested.values())
        assert torch.equal(found.offsets(), nested.offsets())


def test_in_place_it_is_its_own():
    """The public function's is a view, whose base would be part of the graph."""
    values, *rest = parts([3, 1, 2])
    nested = by_class(values, *rest)
    nested.mul_(torch.ones((), requires_grad=True))
    assert (nested.requires_grad, values.requires_grad) == (True, False)


@pytest.mark.parametrize("wrong", ["raises", "differs"])
def test_the_public_function_is_used_where_the_class_is_another(monkeypatch, wrong):
    def odd(values, offsets, shortest, longest):
        if wrong == "raises":
            raise TypeError("unexpected keyword")
        return by_public_function(values, offsets, shortest, longest + 1)

    monkeypatch.setattr(jagged, "by_class", odd)
    jagged.maker.cache_clear()
    try:
        values, *rest = parts([3, 1, 2])
        assert jagged.maker()(values, *rest)._is_view()
    finally:
        jagged.maker.cache_clear()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype:UserWarning")
@pytest.mark.parametrize("make", [by_class, by_public_function, lambda values, *_: values])
def test_the_parts_of_a_tensor(make):
    values, offsets, *rest = parts([3, 1, 2])
    found = jagged_parts(make(values, offsets, *rest))
    if make in (by_class, by_public_function):
        assert found is not None
        assert [part.data_ptr() for part in found] == [values.data_ptr(), offsets.data_ptr()]
    else:
        assert found is None
    assert jagged_parts(torch.eye(2).to_sparse()) is None
    assert jagged_parts(torch.nested.nested_tensor([values])) is None
    assert jagged_parts(torch.nn.Parameter(values)) is None


@pytest.mark.parametrize("device", ["cpu", "meta", "cuda"])
def test_it_is_chosen_wherever_tensors_are_made_by_default(device):
    """Nothing is made there: the device may not even be there."""
    jagged.maker.cache_clear()
    with torch.device(device):
        assert jagged.maker() is by_class
