"""The transforms of batches: what a plain loop over the samples makes with the same random numbers."""

import functools
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from gdsload.shards.format.dtypes import DTYPES as DTYPES_OF_SHARDS
from gdsload.transforms import (
    Cast,
    CenterCrop,
    ChannelsLast,
    Compose,
    DecodeImage,
    Normalize,
    RandomCrop,
    RandomFlip,
)
from tests.transforms.drawing import images, seeded

DTYPES = [torch.uint8, torch.int32, torch.float16, torch.bfloat16, torch.float32, torch.float64]
ALL = [
    Cast("x", torch.float16),
    Normalize("x", (0.5, 0.4, 0.3), (0.1, 0.2, 0.3)),
    RandomFlip("x", 0.3, (-2, -1)),
    RandomCrop("x", (3, 2), padding=1),
    CenterCrop("x", 2),
    ChannelsLast("x"),
]
SEEDS = st.integers(0, 2**64 - 1)
shapes = st.tuples(*[st.integers(low, high) for low, high in ((0, 5), (1, 3), (1, 7), (1, 7))])
WIDE = [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu]


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_random_flip_of_what_torch_does_not_flip(dtype):
    value = torch.arange(24, dtype=torch.uint8).view(4, 6) + 1
    value = value.view(dtype) if dtype.is_floating_point else value.to(dtype)
    found = RandomFlip("x", 1.0)({"x": value})["x"]
    assert found.dtype == dtype
    same = [torch.uint8, torch.int16, torch.int32, torch.int64][dtype.itemsize.bit_length() - 1]
    assert torch.equal(found.view(same), value.view(same).flip(-1))


class Shy:
    """A transform that fails, and cannot even be shown."""

    def __call__(self, batch):
        raise KeyError("mine")

    def __repr__(self):
        raise ValueError("not mine")


def test_what_a_transform_raises_is_what_comes_out():
    with pytest.raises(KeyError, match="mine"):
        Compose([Shy()])({})
    with pytest.raises(KeyError) as caught:
        Compose([functools.partial(lambda table, batch: batch["no"], list(range(10**6)))])({})
    assert len(caught.value.__notes__[0]) < 2000


@given(shapes, st.sampled_from(DTYPES), st.floats(0, 1), st.sampled_from([-1, -2, (-2, -1), 1, (1, 3)]), SEEDS)
def test_random_flip(shape, dtype, p, dims, seed):
    value = images(*shape, dtype=dtype)
    found = RandomFlip("x", p, dims)({"x": value}, seeded(seed))["x"]
    draws = torch.rand(shape[0], generator=seeded(seed))
    whole = (dims,) if isinstance(dims, int) else dims
    inner = [dim - 1 if dim > 0 else dim for dim in whole]
    wanted = [sample.flip(inner) if draw < p else sample for sample, draw in zip(value, draws, strict=True)]
    assert torch.equal(found, torch.stack(wanted) if wanted else value)
    assert found.dtype == dtype


@given(shapes, st.sampled_from(DTYPES), st.integers(0, 2), SEEDS, st.data())
def test_random_crop(shape, dtype, padding, seed, data):
    height, width = (length + 2 * padding for length in shape[2:])
    rows, columns = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    value = images(*shape, dtype=dtype)
    found = RandomCrop("x", (rows, columns), padding)({"x": value}, seeded(seed))["x"]
    generator = seeded(seed)
    top = torch.randint(height - rows + 1, (shape[0],), generator=generator)
    left = torch.randint(width - columns + 1, (shape[0],), generator=generator)
    assert found.shape == (*shape[:2], rows, columns)
    for number, sample in enumerate(value):
        padded = functional.pad(sample, [padding] * 4)
        low, first = int(top[number]), int(left[number])
        assert torch.equal(found[number], padded[:, low : low + rows, first : first + columns])


@pytest.mark.parametrize("shape", [(4, 6, 5), (4, 3, 6, 5), (4, 2, 3, 6, 5)])
def test_crops_of_images_without_channels_and_with_frames(shape):
    value = images(*shape, dtype=torch.float32)
    found = RandomCrop("x", 4)({"x": value}, seeded(1))["x"]
    flat = RandomCrop("x", 4)({"x": value.reshape(4, -1, 6, 5)}, seeded(1))["x"]
    assert torch.equal(found, flat.view(*shape[:-2], 4, 4))


@given(shapes, st.sampled_from(DTYPES), st.sampled_from([torch.float32, torch.bfloat16, torch.float64]), st.booleans())
def test_normalize(shape, dtype, out, one_for_all):
    value, channels = images(*shape, dtype=dtype), 1 if one_for_all else shape[1]
    mean, std = [0.5, 0.1, 0.9][:channels], [0.25, 0.5, 0.1][:channels]
    found = Normalize("x", mean, std, out)({"x": value})["x"]
    scaled = value.double() / (255 if dtype == torch.uint8 else 1)
    table = torch.tensor([mean, std], dtype=torch.float64)[:, :, None, None]
    wanted = (scaled - table[0]) / table[1]
    assert found.dtype == out
    rough = 1e-2 if torch.bfloat16 in (dtype, out) else 1e-5
    assert torch.allclose(found.double(), wanted, rtol=rough, atol=rough)
    for number, sample in enumerate(value):
        assert torch.equal(Normalize("x", mean, std, out)({"x": sample})["x"], found[number])


@pytest.mark.parametrize(
    ("height", "size", "begin"), [(5, 5, 0), (6, 4, 1), (7, 4, 2), (5, 4, 0), (9, 4, 2), (224, 160, 32)]
)
def test_center_crop_is_torchvisions_to_the_pixel(height, size, begin):
    """Of an odd rest, the half that Python's rounding to even gives is above."""
    value = torch.arange(height).expand(1, 3, height)
    assert CenterCrop("x", (2, size))({"x": value})["x"][0, 0].tolist() == list(range(begin, begin + size))


@pytest.mark.parametrize(
    ("shape", "layout"), [((2, 3, 4, 5), torch.channels_last), ((2, 3, 4, 5, 6), torch.channels_last_3d)]
)
def test_channels_last(shape, layout):
    value = images(*shape, dtype=torch.float32)
    found = ChannelsLast("x")({"x": value})["x"]
    assert torch.equal(found, value)
    assert found.is_contiguous(memory_format=layout)


def test_cast_takes_jagged_tensors_too():
    values, offsets = torch.arange(5), torch.tensor([0, 2, 5])
    value = torch.nested.nested_tensor_from_jagged(values, offsets)
    assert Cast("x", torch.float16)({"x": value})["x"].values().tolist() == values.tolist()
    assert Cast("x", torch.int8)({"x": values})["x"].dtype == torch.int8


@pytest.mark.parametrize("transform", ALL, ids=lambda one: type(one).__name__)
def test_all_of_them(transform):
    """They leave what they get as it is, other fields too, and survive pickling; their repr makes them again."""
    value = images(4, 3, 5, 5, dtype=torch.float32)
    batch = {"a": 1, "x": value, "b": 2}
    before = value.clone()
    state = torch.get_rng_state()
    random = isinstance(transform, RandomFlip | RandomCrop)
    copies = [transform, pickle.loads(pickle.dumps(transform)), eval(repr(transform))]
    made = [copy(batch, generator=seeded(3)) if random else copy(batch) for copy in copies]
    assert torch.equal(torch.get_rng_state(), state)
    assert list(batch) == ["a", "x", "b"]
    assert torch.equal(value, before)
    for found in made:
        assert list(found) == ["a", "x", "b"]
        assert (found["a"], found["b"]) == (1, 2)
        assert torch.equal(found["x"], made[0]["x"])


class TestCompose:
    def test_one_behind_the_other_with_one_generator(self):
        flip, crop = RandomFlip("x"), RandomCrop("x", 3)
        batch = {"x": images(8, 3, 5, 5, dtype=torch.float32)}
        composed = Compose([flip, Cast("x", torch.float64), Compose([crop])])
        generator = seeded(7)
        wanted = crop(Cast("x", torch.float64)(flip(batch, generator)), generator)
        assert torch.equal(composed(batch, seeded(7))["x"], wanted["x"])
        assert pickle.loads(pickle.dumps(composed)).random
        assert not Compose([Cast("x", torch.int8)]).random
        assert repr(Compose([crop])) == "Compose([RandomCrop(field='x', size=3, padding=0)])"

    def test_who_takes_a_generator(self):
        """Functions and modules, compiled ones too, that have such a parameter and have not been given one."""

        def draw(batch, generator=None):
            return batch + torch.rand(3, generator=generator)

        class Draw(torch.nn.Module):
            def forward(self, batch, generator):
                return draw(batch, generator)

        own = functools.partial(draw, generator=seeded(1))
        for transform in (draw, Draw(), torch.compile(draw, backend="eager"), torch.compile(Draw(), backend="eager")):
            assert Compose([transform]).random
            assert torch.equal(Compose([transform])(torch.zeros(3), seeded(5)), torch.rand(3, generator=seeded(5)))
        for transform in (own, lambda batch: batch, torch.nn.Identity(), dict):
            assert not Compose([transform]).random

    def test_an_error_says_which_one_raised_it(self):
        with pytest.raises(ZeroDivisionError) as caught:
            Compose([RandomFlip("x"), lambda batch: 1 / 0])({"x": images(2, 2, dtype=torch.float32)})
        assert "<lambda>" in caught.value.__notes__[0]


def test_arrays_will_do():
    three = np.array([1, 2, 3])
    for made in (DecodeImage(size=np.int64(8), mean=three, std=torch.tensor([1, 2, 4])), Normalize("x", three, three)):
        assert made.mean == (1.0, 2.0, 3.0)
        assert hash(made) == hash(replace(made))
    assert DecodeImage(size=[8, np.int32(9)], mean=three, std=three).rows_and_columns == (8, 9)
    assert RandomCrop("x", np.int64(4))({"x": images(2, 3, 9, 9, dtype=torch.float32)})["x"].shape == (2, 3, 4, 4)


def test_how_images_are_decoded_has_defaults():
    options = DecodeImage(size=224, crop="center", mean=(0.5,) * 3, std=(0.25,) * 3)
    assert (options.rows_and_columns, options.short_side, options.result) == ((224, 224), 256, torch.float32)
    assert options.table().tolist() == [[127.5] * 3, [63.75] * 3]
    assert (DecodeImage().result, DecodeImage().table(), DecodeImage().rows_and_columns) == (torch.uint8, None, None)


class TestElementTypes:
    """As torch's, or by the names that fields of a schema have."""

    @pytest.mark.parametrize("given", ["bfloat16", "torch.bfloat16"])
    @pytest.mark.parametrize(
        "make", [functools.partial(Cast, "x"), functools.partial(Normalize, "x", (0.5,), (0.1,)), DecodeImage]
    )
    def test_a_name_is_its_type(self, make, given):
        assert make(dtype=given) == make(dtype=torch.bfloat16)
        assert repr(make(dtype=given)) == repr(make(dtype=torch.bfloat16))

    @pytest.mark.parametrize("name", [dtype.name for dtype in DTYPES_OF_SHARDS.values()])
    def test_all_that_shards_have(self, name):
        assert str(Cast("x", name)({"x": torch.ones(2)})["x"].dtype) == f"torch.{name}"

    def test_tokens_of_16_bits_can_be_looked_up(self):
        tokens = torch.tensor([[1, 60000]], dtype=torch.uint16)
        found = Cast("x", "int64")({"x": tokens})["x"]
        assert torch.nn.Embedding(65536, 2)(found).shape == (1, 2, 2)

    def test_numpys_types_have_the_same_names(self):
        assert Cast("x", np.int64) == Cast("x", np.dtype("int64")) == Cast("x", torch.int64)
