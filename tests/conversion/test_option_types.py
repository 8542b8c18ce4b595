"""Options of all kinds: a value that cannot be used is refused by name, and says what it may be."""

from __future__ import annotations

import pytest

from gdsload import convert
from gdsload.conversion.option_types import check_values
from gdsload.conversion.recognise import KINDS, source_class, source_for
from gdsload.errors import ConversionError, OptionError


@pytest.mark.parametrize(
    ("kind", "options", "match"),
    [
        ("coco", {"boxes": "ltrb"}, "boxes is 'ltrb'. Supported are xyxy, xywh, cxcywh"),
        ("coco", {"size": 8}, "would cut objects off. Pass resize='squash'"),
        ("csv", {"delimiter": ";;"}, "delimiter is ';;'"),
        ("csv", {"mode": "CMYK"}, "mode is 'CMYK'"),
        ("csv", {"types": "zip:str"}, "types is 'zip:str'. It may be: a mapping of each text to a text"),
        ("csv", {"types": {"x": "date"}}, "type of 'x' is 'date'"),
        ("csv", {"types": {"zip": 5}}, "types is .*a mapping of each text to a text"),
        ("h5ad", {"dense": 1}, "dense is 1. It may be: true or false"),
        ("hdf5", {"group": 5}, "group is 5. It may be: text"),
        ("idx", {"prefix": 7}, "prefix is 7. It may be: text"),
        ("images", {"follow_links": "yes"}, "follow_links is 'yes'. It may be: true or false"),
        ("images", {"keep_encoded": "yes"}, "keep_encoded is 'yes'. It may be: true or false"),
        ("images", {"keep_encoded": 1}, "keep_encoded is 1. It may be: true or false"),
        ("images", {"keep_encoded": True, "mode": "RGB"}, "keep_encoded leaves images as they are"),
        ("images", {"keep_encoded": True, "mode": {"image": "L"}}, "keep_encoded leaves images as they are"),
        ("images", {"keep_encoded": True, "size": 8}, "keep_encoded leaves images as they are"),
        ("images", {"mode": "CMYK"}, "mode is 'CMYK'"),
        ("images", {"resize": "crop"}, "resize is 'crop'"),
        ("images", {"resize": "stretch"}, "resize is 'stretch'"),
        ("images", {"size": "abc"}, "size is 'abc'. It may be: whole number"),
        ("images", {"size": 0}, "size is 0"),
        ("images", {"size": 2.5}, "size is 2.5. It may be: whole number"),
        ("images", {"size": True}, "size is True. It may be: whole number"),
        ("lmdb", {"database": 5}, "database is 5. It may be: text"),
        ("lmdb", {"decode": "pickle"}, "decode is 'pickle'. Supported are bytes, text, npy, image, safetensors"),
        ("lmdb", {"with_key": "yes"}, "with_key is 'yes'. It may be: true or false"),
        ("mat", {"last": 5}, "last is 5. It may be: a list, each a text"),
        ("mat", {"last": ["a", 5]}, "last is .*It may be: a list, each a text"),
        ("mat", {"last": "lab"}, r"last is the text 'lab'. Pass a list: last=\['lab'\]"),
        ("mat", {"last": "X"}, r"last is the text 'X'. Pass a list: last=\['X'\]"),
        ("parquet", {"as_json": "x"}, "as_json is the text 'x'"),
        ("parquet", {"decimals": "int"}, "decimals is 'int'"),
        ("pt", {"each": "sample"}, "each is 'sample'"),
        ("text", {"each": "word"}, "each is 'word'"),
        ("text", {"encoding": "klingon"}, "encoding is 'klingon', which Python does not know"),
        ("text", {"encoding": "utf-16"}, "lines of 'utf-16' are not read. Pass each='file'"),
        ("tokens", {"dtype": "float32"}, "dtype is 'float32'"),
        ("tokens", {"dtype": "token"}, "dtype is 'token'"),
        ("tokens", {"dtype": "uint16", "end": 70_000}, "end is 70000"),
        ("tokens", {"each": "line"}, "each is 'line'. Supported are"),
        ("tokens", {"each": "token", "end": 1}, "end ends documents, but each='token' makes none"),
        ("tokens", {"end": "2"}, "end is '2'. It may be: whole number"),
        ("webdataset", {"max_member_bytes": 0}, "max_member_bytes is 0"),
        ("webdataset", {"max_member_bytes": "1GB"}, "max_member_bytes is '1GB'. It may be: whole number"),
        ("webdataset", {"mode": "CMYK"}, "mode is 'CMYK'"),
        ("webdataset", {"with_key": "no"}, "with_key is 'no'. It may be: true or false"),
        ("webdataset", {"with_key": 0}, "with_key is 0. It may be: true or false"),
    ],
)
def test_values_that_no_source_can_have(tmp_path, kind, options, match):
    with pytest.raises(OptionError, match=match):
        source_for(str(tmp_path), kind, options)


@pytest.mark.parametrize(
    ("kind", "options", "match"),
    [
        ("csv", {"fill": {"label": 1.5}}, "fill has 1.5 for column 'label', which is int"),
        ("csv", {"fill": {"q": 1}}, "no field 'q'"),
        ("csv", {"types": {"q": "int"}}, "no field 'q'"),
        ("h5ad", {"matrix": "layers/none"}, "there is no 'layers/none'"),
        ("hdf5", {"group": "x"}, "no group"),
        ("hdf5", {"group": "y"}, "no group"),
        ("jsonl", {"as_json": ["q"]}, "no field 'q'. There are 'text', 'n'"),
        ("jsonl", {"types": {"n": "number"}}, "the type of 'n' is 'number'. Pass int64"),
        ("jsonl", {"types": {"q": "int64"}}, "no field 'q'. There are 'text', 'n'"),
        ("mat", {"last": ["y"]}, "no field 'y'. There are 'x'"),
        ("parquet", {"fill": {"x": 1.5}}, "fill has 1.5 for field 'x', which is int64"),
        ("parquet", {"fill": {"y": 1}}, "no field 'y'"),
    ],
)
def test_values_that_do_not_fit_the_files(tmp_path, make_source, kind, options, match):
    make_source(kind, tmp_path)
    with pytest.raises(OptionError, match=match):
        source_for(str(tmp_path), kind, options).parts(1)


def test_a_field_that_there_is_not(source_of_files, tmp_path):
    kind, folder, _, options = source_of_files
    error = ConversionError if kind == "webdataset" else OptionError  # each sample of a tar has its own fields
    with pytest.raises(error, match="no field 'q'.*There are '"):
        convert(folder, tmp_path / "out", kind=kind, workers=1, fields=["q"], **options)


def test_values_of_a_right_type(tmp_path):
    _, made = source_class(str(tmp_path), "csv")
    check_values(made, {"types": {"a": "str"}, "size": 5, "delimiter": None, "mode": {"a": "L", "": "RGB"}, "zzz": 1})
    check_values(made, {"types": None, "mode": "RGB"})


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"torch"}))
def test_every_option_of_every_kind_is_checked(tmp_path, kind):
    """Each has an annotation, by which a value of no type at all is refused."""
    _, made = source_class(str(tmp_path), kind)
    with pytest.raises(OptionError, match="Its options are") as caught:
        from gdsload.conversion.keywords import divided

        divided(str(tmp_path), {"kind": kind, "source_options": {"zzz": 1}})
    for name in caught.value.remedy.removeprefix("Its options are ").rstrip(".").split(", "):
        with pytest.raises(OptionError, match=f"{name} is <object"):
            check_values(made, {name: object()})
