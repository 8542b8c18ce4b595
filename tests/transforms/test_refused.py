"""Refusals of transforms: each call, and a telling piece of the error."""

import pytest
import torch

from gdsload import OptionError
from gdsload.transforms import (
    Cast,
    CenterCrop,
    ChannelsLast,
    ColorJitter,
    Compose,
    CutMix,
    DecodeImage,
    MixUp,
    Normalize,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
)

NO_TYPES = ["int", "int65", "float", "long", "cpu", "", "torch", None, int, 3, [], torch.strided, torch.quint8]
NO_TYPE = "dtype of .*is no element type. Pass one of torch's, `torch.int64`, or its name, `'int64'`"


def x(*shape, dtype=torch.float32, **others):
    """A batch of one tensor and other fields."""
    return {"x": torch.ones(shape).to(dtype), **others}


CALLS = [
    (lambda: Cast("y", torch.int8)({"x": 1, "z": 2}), "field='y'.* no such field. It has 'x', 'z'"),
    (lambda: Cast("x", torch.int8)({"x": ["text"]}), "the field is a list, no tensor"),
    *((lambda dtype=dtype: Cast("x", dtype), NO_TYPE) for dtype in NO_TYPES),
    (lambda: CenterCrop("x", (2, 0))(x(2, 3, 3, 9)), "2 x 0 cannot be cut"),
    (lambda: CenterCrop("x", 2)(x(8, 4)), "less than 3 dimensions"),
    (lambda: ChannelsLast("x")(x(9, 9)), "2 dimensions, not 4 or 5"),
    (lambda: ColorJitter("x", brightness=(2, 1)), "from a least to a largest"),
    (lambda: ColorJitter("x", contrast=(-1, 1)), "factors must be at least 0"),
    (lambda: ColorJitter("x", hue=0.6), "hue of ColorJitter is 0.6, .* within -0.5 and 0.5"),
    (lambda: ColorJitter("x", 0.1)(x(2, 4, 4, 4)), r"not \[batch, 3 or 1, height, width\]"),
    (lambda: ColorJitter("x", 0.1)(x(2, 3, 4, 4, dtype=torch.int64)), "int64, neither uint8"),
    (lambda: Compose([len, 5]), "5 is no transform"),
    (lambda: CutMix("x", "y", 3)(x(1, 3, 3, y=torch.tensor([-1]))), "labels -1 to -1"),
    (lambda: CutMix("x", "y", p=2), "`p` a probability"),
    (lambda: DecodeImage(crop="middle"), "crop of DecodeImage is 'middle', none of 'random-resized', 'center', 'none'"),
    (lambda: DecodeImage(crop="center"), "crop of DecodeImage is 'center', which needs a `size`"),
    (lambda: DecodeImage(on_error="skip"), "on_error of DecodeImage is 'skip', none of 'raise', 'zeros'"),
    (lambda: DecodeImage(size=0), "size of DecodeImage is 0, which is no height and width"),
    (lambda: DecodeImage(size=(8,)), r"size of DecodeImage is \(8,\), neither a whole number nor height and width"),
    (lambda: DecodeImage(size=(8, 9), crop="center", resize=8), r"resize of DecodeImage is 8, less than \(8, 9\)"),
    (lambda: DecodeImage(scale=(0.5, 3.0)), "scale of .*, which goes beyond 1, all of an image"),
    (lambda: DecodeImage(scale=(0.5, 0.1)), "scale of .*, which is no range of positive numbers"),
    (lambda: DecodeImage(ratio=(0.0, 1.0)), "ratio of .*, which is no range of positive numbers"),
    (lambda: DecodeImage(flip=1.5), "flip of DecodeImage is 1.5, which is no probability"),
    (lambda: DecodeImage(mean=0.5, std=0.5), "mean of .* is 0.5, which is no sequence of numbers"),
    (lambda: DecodeImage(mean=(1, 2, 3)), "takes `mean` and `std` together"),
    (lambda: DecodeImage(mean=(1, 2), std=(1, 2)), "takes a `mean` and a `std` for each of 3 channels"),
    (lambda: DecodeImage(mean=(1, 2, 3), std=(1, 0, 1)), "no `std` is 0"),
    (lambda: DecodeImage(mean=(1, 2, 3), std=(1, 1, 1), dtype=torch.uint8), "dtype of .* are no whole numbers"),
    (lambda: DecodeImage(dtype=torch.int16), "dtype of .* is torch.int16, neither uint8, float32"),
    (lambda: DecodeImage(dtype="int64"), "dtype of .*, neither uint8, float32"),
    *((lambda dtype=dtype: DecodeImage(dtype=dtype or "none"), NO_TYPE) for dtype in NO_TYPES),
    (lambda: DecodeImage(max_pixels=0), "max_pixels of DecodeImage is 0, less than 1"),
    (lambda: MixUp("x", "y", alpha=0), "`alpha` must be more than 0"),
    (lambda: MixUp("x", "y", alpha=float("inf")), "`alpha` must be more than 0 and finite"),
    (lambda: MixUp("x", "y", 3)(x(2, 3, y=torch.tensor([0, 3]))), "labels 0 to 3, and 3 classes"),
    (lambda: MixUp("x", "y", 3)(x(2, 3, dtype=torch.float8_e5m2)), "Put Normalize"),
    (lambda: MixUp("x", "y", 10)(x(2, 3, dtype=torch.uint8, y=torch.ones(2))), "Put Normalize"),
    (lambda: MixUp("x", "y")(x(2, 3, y=torch.zeros(2, dtype=torch.int64))), "num_classes of MixUp is None"),
    (lambda: MixUp("x", "z", 10)(x(2, 3, y=1)), "label of MixUp is 'z', which is no tensor of the batch"),
    (lambda: MixUp("x", "x", 10)(x(2, 3, 6, 8, dtype=torch.float64)), "neither whole numbers"),
    (lambda: Normalize("x", 0.5, 1.0), "mean of .* is 0.5, which is no sequence of numbers"),
    (lambda: Normalize("x", [0.5, 0.5], [1.0, 1.0])(x(2, 3, 4, 4)), "the field has 3 channels"),
    (lambda: Normalize("x", [0.5], [0.0]), "no `std` 0"),
    (lambda: Normalize("x", [0.5], [1.0, 1.0]), "of one length"),
    (lambda: Normalize("x", (0.5,), (0.1,), "uint8"), "dtype of .* normalized values are no whole numbers"),
    *((lambda dtype=dtype: Normalize("x", (0.5,), (0.1,), dtype), NO_TYPE) for dtype in NO_TYPES),
    (lambda: RandomCrop("x", (4, 4, 4))(x(2, 3, 9, 9)), "size of RandomCrop is .*, neither a whole number nor height"),
    (lambda: RandomCrop("x", 4.5)(x(2, 3, 9, 9)), "size of RandomCrop is .*, neither a whole number nor height"),
    (lambda: RandomCrop("x", 4)(x(2, 3, 3, 9)), "4 x 4 cannot be cut out of 3 x 9"),
    (lambda: RandomCrop("x", 4)(x(9, 9)), "shape .9, 9., less than 3 dimensions"),
    (lambda: RandomFlip("x", 1.5), "p of RandomFlip is 1.5, which is no probability"),
    (lambda: RandomFlip("x", dims=(-1, 3))(x(2, 3, 4, 4)), r"dims of RandomFlip is \(-1, 3\), twice"),
    *(
        (lambda dims=dims: RandomFlip("x", 1.0, dims)(x(4, 6)), "dims of RandomFlip is .*, not all in a sample")
        for dims in (0, -2, (1, 0), 2, -3)
    ),
    (lambda: RandomResizedCrop("x", 0), "size of RandomResizedCrop is 0, which is no size"),
    (lambda: RandomResizedCrop("x", 4, scale=(0.5, 0.1)), "from a least to a largest"),
    (lambda: RandomResizedCrop("x", 4, scale=(0.5, 1.1)), "`scale` up to 1"),
    (lambda: RandomResizedCrop("x", 4, ratio=(2, 1)), "from a least to a largest"),
    (lambda: RandomResizedCrop("x", 4)(x(1, 3, 4, 4, dtype=torch.int32)), "int32, neither uint8 nor"),
    (lambda: RandomResizedCrop("x", 4)(x(1, 3, 0, 4)), "nothing can be cut out"),
    (lambda: RandomResizedCrop("y", 4)({"x": 1}), "no such field"),
]


@pytest.mark.parametrize(("call", "message"), CALLS, ids=lambda one: one if isinstance(one, str) else "")
def test_calls(call, message):
    with pytest.raises(OptionError, match=message):
        call()
