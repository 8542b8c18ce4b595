"""What conversions and their sources refuse: each option's value, and what the error says of it."""

from __future__ import annotations

import numpy as np
import pytest

import gdsload
from gdsload.conversion.keywords import divided
from gdsload.conversion.option_types import check_values
from gdsload.conversion.recognise import KINDS, source_class, source_for
from gdsload.errors import ConversionError, OptionError

TOKENS = {"field": "ids", "length": 4}
NO_FUNCTIONS = ("no.such:x", "os:none", "os", ":x", "os:")
NO_SHARES = ("", "x", "-1", -1, -0.5, 1.5, "101%", True, None, float("nan"), float("inf"), [1], "1e-2")

# An option of `convert`, its values, and what the error says of each.
VALUES = [
    ("casts", [["x"], {"x": 3}], "casts is"),
    ("casts", [{"x": "int3"}], "no element type"),
    ("casts", [{"x": "uint8:klip"}], "'uint8:klip', which is no element type.*With :clip behind it"),
    ("casts", [{"z": "int8"}], "there is no field 'z'"),
    ("each", ["sample"], 'each is \'sample\'. Supported are "row" and "file"'),
    ("executor", [3], "executor is 3. It may be: a concurrent.futures.Executor"),
    ("fields", ["xy"], "fields is the text 'xy'.*Pass a list: fields="),
    ("fields", [3], "fields is 3, no list of names"),
    ("fields", [[3]], r"fields is \[3\], no list of names"),
    ("fields", [["z"]], "no field 'z'"),
    ("fixed", [True], "fixed is True, no list of names"),
    ("kind", ["tape"], "kind is 'tape'"),
    ("map", NO_FUNCTIONS, "map is .*, which cannot be found"),
    ("map", [lambda sample: sample, len, 3], 'no name. Put .* "package.module:function"'),
    ("max_skipped", NO_SHARES, "no share or number of samples"),
    ("metadata", [3], "metadata is 3"),
    ("overwrite", ["no"], "overwrite is 'no'. It may be: True or False"),
    ("pack", [5], "pack is 5"),
    ("pack", [{**TOKENS, "lenght": 5}], "pack has no option 'lenght'. Did you mean 'length'"),
    ("pack", [{"field": "ids"}], r"missing is 'length'\. Pass {"),
    ("pack", [{"length": 4}], r"missing is 'field'\. Pass {"),
    ("pack", [{**TOKENS, "field": 3}], "field of pack is 3, no name"),
    ("pack", [{**TOKENS, "field": "cu_seqlens"}], "cannot be 'cu_seqlens'"),
    ("pack", [{**TOKENS, "field": "text"}], "no field 'text'"),
    ("pack", [{**TOKENS, "length": 0}], "cannot have 0 tokens"),
    ("pack", [{**TOKENS, "length": "4"}], "length is '4'"),
    ("pack", [{**TOKENS, "pad": 0.5}], "pad is 0.5"),
    ("pack", [{**TOKENS, "pad": -(2**31) - 1}], "pad is -2147483649"),
    ("pack", [{**TOKENS, "eos": 2**31}], "eos is 2147483648, but tokens are int32"),
    ("pack", [{**TOKENS, "end": 1}], "end"),
    ("progress", [3], "progress is 3. It may be: a function of four numbers"),
    ("ragged", ["xy"], "ragged is the text 'xy'.*Pass a list: ragged="),
    ("ragged", [3], "ragged is 3, no list of names"),
    ("restart", ["no"], "restart is 'no'. It may be: True or False"),
    ("schema", [3], "schema is 3. It may be: a mapping from names to gdsload.Field, or None"),
    ("shuffle_seed", ["1"], "shuffle_seed is '1', which is no whole number"),
    ("shuffle_seed", [1.5], "shuffle_seed is 1.5, which is no whole number"),
    ("shuffle_seed", [-1, 2**64], "shuffle_seed is"),
    ("source_options", [["size"]], "source_options is .* It may be: a mapping from names to values"),
    ("spread_over", ["d"], "no list. Pass a list of folders"),
    ("workers", [0, -1, 1.5, "2"], "workers is"),
]


@pytest.fixture
def arrays(tmp_path):
    np.save(tmp_path / "ids.npy", np.arange(60, dtype=np.int32).reshape(30, 2))
    return tmp_path / "ids.npy"


@pytest.mark.parametrize(
    ("given", "message"),
    [({name: value}, message) for name, values, message in VALUES for value in values],
    ids=lambda one: one if isinstance(one, str) else ",".join(one),
)
def test_options_of_convert(arrays, tmp_path, given, message):
    """Before anything is written."""
    with pytest.raises(OptionError, match=message):
        gdsload.convert(arrays, tmp_path / "out", **given)
    assert list(tmp_path.iterdir()) == [arrays]


CALLS = {
    "merge": lambda shards, out, **options: gdsload.merge([shards], out, **options),
    "reshard": gdsload.reshard,
    "split": lambda shards, out, **options: gdsload.split(shards, [out, f"{out}2"], [0.5], **options),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["fields", "overwrite", "progress", "schema"])
def test_options_of_the_others(tmp_path, call, name):
    with gdsload.ShardWriter(tmp_path / "d") as writer:
        writer.write_batch({"n": [1, 2]})
    with pytest.raises(OptionError, match=f"{name} is 3"):
        CALLS[call](tmp_path / "d", tmp_path / "out", **{name: 3})
    assert list(tmp_path.iterdir()) == [tmp_path / "d"]


# Options of a kind of source, refused before its files are opened; that their types are checked is shown below.
SOURCES = [
    ("audio", {"dtype": "int16"}, "dtype is 'int16'. Supported are"),
    ("audio", {"dtype": "float32", "keep_encoded": True}, "keep_encoded keeps the files' bytes. Pass one of them"),
    *(("csv", {"delimiter": one}, "delimiter is .*Pass a single character of ASCII") for one in ("¦", "", '"')),
    ("images", {"follow_links": 1}, "follow_links is 1. It may be: true or false"),
    ("litdata", {"mode": "CMYK"}, "mode is 'CMYK'"),
    ("tfrecord", {"types": {"x": "pickle"}}, "types has 'pickle' for 'x'. Supported are bytes, text, npy, image, list"),
    ("coco", {"boxes": "ltrb"}, "boxes is 'ltrb'. Supported are xyxy, xywh, cxcywh"),
    ("coco", {"size": 8}, "would cut objects off. Pass resize='squash'"),
    ("csv", {"mode": "CMYK"}, "mode is 'CMYK'"),
    ("csv", {"types": {"x": "date"}}, "type of 'x' is 'date'"),
    ("csv", {"types": {"zip": 5}}, "types is .*a mapping of each text to a text"),
    ("images", {"keep_encoded": True, "mode": {"image": "L"}}, "keep_encoded leaves images as they are"),
    ("images", {"keep_encoded": True, "size": 8}, "keep_encoded leaves images as they are"),
    ("images", {"mode": "CMYK"}, "mode is 'CMYK'"),
    ("images", {"resize": "crop"}, "resize is 'crop'"),
    ("images", {"resize": "stretch"}, "resize is 'stretch'"),
    ("images", {"size": 0}, "size is 0"),
    ("images", {"size": True}, "size is True. It may be: whole number"),
    ("lmdb", {"decode": "pickle"}, "decode is 'pickle'. Supported are bytes, text, npy, image, safetensors"),
    ("mat", {"last": ["a", 5]}, "last is .*It may be: a list, each a text"),
    ("mat", {"last": "X"}, r"last is the text 'X'. Pass a list: last=\['X'\]"),
    ("parquet", {"decimals": "int"}, "decimals is 'int'"),
    ("pt", {"each": "sample"}, "each is 'sample'"),
    ("text", {"each": "word"}, "each is 'word'"),
    ("text", {"encoding": "klingon"}, "encoding is 'klingon', which Python does not know"),
    ("text", {"encoding": "utf-16"}, "lines of 'utf-16' are not read. Pass each='file'"),
    ("tokens", {"dtype": "float32"}, "dtype is 'float32'"),
    ("tokens", {"dtype": "uint16", "end": 70_000}, "end is 70000"),
    ("tokens", {"each": "line"}, "each is 'line'. Supported are"),
    ("tokens", {"each": "token", "end": 1}, "end ends documents, but each='token' makes none"),
    ("webdataset", {"max_member_bytes": 0}, "max_member_bytes is 0"),
    ("webdataset", {"mode": "CMYK"}, "mode is 'CMYK'"),
]


@pytest.mark.parametrize(("kind", "options", "message"), SOURCES)
def test_options_of_sources(tmp_path, kind, options, message):
    with pytest.raises(OptionError, match=message):
        source_for(str(tmp_path), kind, options)


# Options that do not fit the files.
FILES = [
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
    ("tfrecord", {"types": {"none": "text"}}, "there is no field 'none'. There are 'x'"),
    ("tfrecord", {"types": {"x": "image"}}, "types has 'image' for feature 'x', which is a int64_list"),
]


@pytest.mark.parametrize(("kind", "options", "message"), FILES)
def test_options_that_do_not_fit_the_files(tmp_path, make_source, kind, options, message):
    make_source(kind, tmp_path)
    with pytest.raises(OptionError, match=message):
        source_for(str(tmp_path), kind, options).parts(1)


def test_a_field_that_there_is_not(source_of_files, tmp_path):
    kind, folder, _, options = source_of_files
    error = ConversionError if kind == "webdataset" else OptionError  # each sample of a tar has its own fields
    with pytest.raises(error, match="no field 'q'.*There are '"):
        gdsload.convert(folder, tmp_path / "out", kind=kind, workers=1, fields=["q"], **options)


def test_values_of_a_right_type(tmp_path):
    _, made = source_class(str(tmp_path), "csv")
    check_values(made, {"types": {"a": "str"}, "size": 5, "delimiter": None, "mode": {"a": "L", "": "RGB"}, "zzz": 1})
    check_values(made, {"types": None, "mode": "RGB"})


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"torch"}))
def test_every_option_of_every_kind_is_checked(tmp_path, kind):
    """Each has an annotation, by which a value of no type at all is refused."""
    _, made = source_class(str(tmp_path), kind)
    with pytest.raises(OptionError, match="Its options are") as caught:
        divided(str(tmp_path), {"kind": kind, "source_options": {"zzz": 1}})
    for name in caught.value.remedy.removeprefix("Its options are ").rstrip(".").split(", "):
        with pytest.raises(OptionError, match=f"{name} is <object"):
            check_values(made, {name: object()})
