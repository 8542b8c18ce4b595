"""Fields of encoded images: their codecs, and what they take for an image."""

import numpy as np
import pytest
import torch

from gdsload.errors import SchemaError
from gdsload.shards.encode import batch_rows, sample_rows
from gdsload.shards.format.image_header import IMAGE_CODECS
from gdsload.shards.format.schema import Field, Schema
from tests.shards.format.shard_files import SIGNATURES


def test_codecs_are_a_set():
    assert Field("image") == Field("image", codecs=["webp", "jpeg", "png", "jpeg"])
    assert Field("image", codecs="png") == Field("image", codecs={"png"})
    assert Field("image", codecs=["png", "jpeg"]).codecs == ("jpeg", "png")
    assert Field("image", codecs=["png"]) != Field("image", codecs=["jpeg"])
    assert hash(Field("image")) == hash(Field("image", codecs=IMAGE_CODECS))
    assert len({Field("image"), Field("bytes"), Field("str"), Field("image", codecs=["png"])}) == 4
    assert (Field("image").kind, Field("image").ragged, Field("image").is_string) == ("image", True, True)
    assert eval(repr(Field("image", codecs=["png"])), {"Field": Field}) == Field("image", codecs=["png"])
    assert (Field("bytes").codecs, Field("uint8", (None,)).codecs) == ((), ())


NO_CODECS = "the codecs of encoded images are .* Name some of jpeg, png, webp"


@pytest.mark.parametrize(
    ("dtype", "codecs", "says"),
    [
        *[("image", codecs, NO_CODECS) for codecs in ([], ["jpeg", "bmp"], "jpg", 3, [["jpeg"]])],
        *[(dtype, ["png"], "codecs are those of encoded images") for dtype in ("bytes", "str", "uint8")],
    ],
    ids=repr,
)
def test_codecs_that_cannot_be(dtype, codecs, says):
    with pytest.raises(SchemaError, match=says):
        Field(dtype, codecs=codecs)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    "form", [bytes, lambda raw: np.frombuffer(raw, np.uint8), lambda raw: torch.tensor([*raw]).byte()]
)
@pytest.mark.parametrize("codec", IMAGE_CODECS)
def test_bytes_and_arrays_of_them_are_images(codec, form, batch):
    raw = SIGNATURES[codec] + b"anything"
    schema = Schema({"i": Field("image", codecs=[codec])})
    rows = batch_rows(schema, {"i": [form(raw)] * 2})["i"] if batch else sample_rows(schema, {"i": form(raw)})["i"]
    assert rows.data.tobytes() == raw * (1 + batch)
    assert rows.lengths.tolist() == [len(raw)] * (1 + batch)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"GIF89a", "an encoded image is jpeg, png in this field, but one is none of them: it begins with b'GIF89a'"),
        (b"", "but one is none of them: it begins with b''"),
        (SIGNATURES["webp"], "but one is webp. Encode it again, or give the writer a schema"),
        (np.zeros(4, np.uint8), "but one is none of them"),
        (np.zeros((2, 2), np.uint8), r"a sample has shape \[2, 2\], but \[any\] was expected"),
        (np.zeros(4, np.int8), "it is int8, but the schema says uint8"),
        ("text", "it is str, but the bytes of an encoded image were expected"),
        (None, "it is NoneType, but the bytes of an encoded image were expected"),
    ],
)
@pytest.mark.parametrize("batch", [False, True])
def test_what_is_no_image_of_the_codecs_is_refused(value, says, batch):
    schema = Schema({"i": Field("image", codecs=["png", "jpeg"])})
    with pytest.raises(SchemaError, match=says) as caught:
        batch_rows(schema, {"i": [value]}) if batch else sample_rows(schema, {"i": value})
    assert caught.value.field == "i"
