"""Fields of encoded images, version 3 of the format: stored as bytes, and never taken for anything else."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.errors import SchemaError
from gdsload.shards.encode import batch_rows, sample_rows
from gdsload.shards.format.image_header import IMAGE_CODECS
from gdsload.shards.format.index import INDEX_NAME, Index, IndexEntry, parse_index
from gdsload.shards.format.layout import ShardLayout
from gdsload.shards.format.schema import Field, Schema
from gdsload.shards.format.stored import packed_by
from tests.shards.format.shard_files import SHA, file_of, random_payloads, shard_of, tree_of

SETTINGS = settings(derandomize=True, deadline=None, max_examples=80)
SIGNATURES = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n", "webp": b"RIFF\1\2\3\4WEBP"}
codecs = st.sets(st.sampled_from(IMAGE_CODECS), min_size=1)


@st.composite
def layouts(draw: st.DrawFn) -> ShardLayout:
    """Some fields of images beside others, small ones of which may be packed."""
    fields: dict[str, Field] = {f"i{number}": Field("image", codecs=draw(codecs)) for number in range(draw(PLURAL))}
    fields |= {f"s{number}": Field(draw(st.sampled_from(["int8", "int64"]))) for number in range(draw(PLURAL) - 1)}
    fields |= {"b": Field("bytes")} if draw(st.booleans()) else {}
    names = draw(st.permutations(list(fields)))
    stored = packed_by(Schema({name: fields[name] for name in names}), "auto")
    ragged = [name for name, field in stored.schema.items() if field.ragged]
    rows = {name: draw(st.integers(0, 5000)) for name in ragged}
    return ShardLayout(stored.schema, draw(st.integers(1, 300)), rows, {name: name for name in ragged}, stored.packed)


PLURAL = st.integers(1, 6)


def metadata(layout: ShardLayout) -> dict:
    return tree_of(layout.header())["__metadata__"]


@SETTINGS
@given(layouts())
def test_shard_reads_back_what_was_laid_out(layout):
    payloads = random_payloads(layout)
    raw = file_of(layout, payloads)
    shard = shard_of(raw)
    assert (layout.stored, layout.samples) == (shard.stored, shard.samples)
    opened = dict(safetensors.deserialize(raw))
    for name, field in layout.schema.items():
        if field.kind == "image":
            assert (opened[name]["dtype"], opened[name]["shape"]) == ("U8", [layout.rows[name]])
            assert bytes(opened[name]["data"]) == payloads[name]
            assert shard.schema[name].codecs == field.codecs


@SETTINGS
@given(layouts())
def test_images_are_laid_out_as_bytes_are(layout):
    fields = {name: Field("bytes") if field.kind == "image" else field for name, field in layout.schema.items()}
    plain = ShardLayout(Schema(fields), layout.samples, layout.rows, layout.offsets, layout.packed)
    assert layout.tensors() == plain.tensors()
    assert layout.data_offsets() == plain.data_offsets()


@SETTINGS
@given(layouts())
def test_version_is_3_where_there_are_images(layout):
    assert metadata(layout)["gdsload.version"] == "3"
    assert json.loads(Index(layout.schema, (), layout.packed).to_bytes())["version"] == 3
    fields = {name: field for name, field in layout.schema.items() if field.kind != "image"}
    if fields:
        assert packed_by(Schema(fields), "auto").version < 3


@SETTINGS
@given(layouts())
def test_metadata_of_a_shard_of_images(layout):
    tree = json.loads(metadata(layout)["gdsload.schema"])
    assert list(tree) == ["fields", "offsets", *(["packed"] if layout.packed else [])]
    for name, field in layout.schema.items():
        if field.kind == "image":
            assert tree["fields"][name] == {"dtype": "image", "codecs": sorted(field.codecs)}


@SETTINGS
@given(layouts(), st.lists(st.integers(1, 2**40), max_size=3))
def test_index_reads_back_what_was_written(layout, counts):
    shards = tuple(IndexEntry(f"{number}.safetensors", count, 8192, SHA) for number, count in enumerate(counts))
    index = Index(layout.schema, shards, layout.packed)
    assert index == parse_index(index.to_bytes(), INDEX_NAME)
    tree = json.loads(index.to_bytes())
    packed = ["packed"] if layout.packed else []
    assert list(tree) == ["format", "version", "samples", "schema", *packed, "shards", "sha256"]


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


@pytest.mark.parametrize("given", [[], ["jpeg", "bmp"], "jpg", 3, [["jpeg"]]], ids=repr)
def test_codecs_that_there_are_not(given):
    with pytest.raises(SchemaError, match="the codecs of encoded images are .* Name some of jpeg, png, webp"):
        Field("image", codecs=given)


@pytest.mark.parametrize("dtype", ["bytes", "str", "uint8"])
def test_codecs_of_what_is_no_image(dtype):
    with pytest.raises(SchemaError, match="codecs are those of encoded images"):
        Field(dtype, codecs=["png"])


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
