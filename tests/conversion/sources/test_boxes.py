"""Boxes in the form in which a file has them, and in the form that is asked for."""

from typing import get_args

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gdsload.conversion.sources.boxes import Boxes, BoxForm
from gdsload.conversion.sources.pictures import ImageForm

CORNERS = st.tuples(*[st.integers(0, 50)] * 4)


def written(low, high, form, width, height):
    if form == "cxcywh":
        return np.concatenate([(low + high) / 2, high - low], 1) / (width, height, width, height)
    return np.concatenate([low, high if form == "xyxy" else high - low], 1).astype(float)


@given(
    st.lists(CORNERS, max_size=5),
    st.sampled_from(["xywh", "cxcywh"]),
    st.sampled_from(get_args(Boxes)),
    st.sampled_from([None, 1, 24, 500]),
)
def test_every_form_is_made_of_every_other_for_the_image_as_it_is_made(corners, has, wanted, size):
    points = np.array(corners).reshape(-1, 2, 2)
    low, high = points.min(1), points.max(1)
    look = ImageForm() if size is None else ImageForm(size=size, resize="squash")
    made = BoxForm(wanted, look).made(written(low, high, has, 60, 50), has, 60, 50)
    width, height = (60, 50) if size is None else (size, size)
    scale = np.array([width / 60, height / 50])
    assert (made.dtype, made.shape) == (np.float32, (len(corners), 4))
    assert np.allclose(made, written(low * scale, high * scale, wanted, width, height), atol=1e-4)
