"""Options of conversions and of their sources: none is ignored, and what is wrong is refused with what it may be."""

import inspect
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import gdsload
from gdsload.conversion.keywords import ConvertKeywords, RearrangeKeywords, SourceKeywords
from gdsload.conversion.option_types import source_parameters
from gdsload.conversion.recognise import KINDS, source_class, source_for
from gdsload.conversion.runner import plan
from gdsload.errors import ConversionError, OptionError

TOKENS = {"field": "ids", "length": 4}
NO_FUNCTIONS = ("no.such:x", "os:none", "os", ":x", "os:")
NO_SHARES = ("", "x", "-1", -1, -0.5, 1.5, "101%", True, None, float("nan"), float("inf"), [1], "1e-2")

# An option of `convert`, its values, and what the error says of each.
VALUES = [
    ("casts", [["x"], {"x": 3}], "casts is"),
    ("casts", [{"x": "int3"}], "no element type"),
    ("casts", [{"x": "uint8:klip"}], "'uint8:klip', which is no element type.*With :clip after it"),
    ("casts", [{"z": "int8"}], "there is no field 'z'"),
    ("each", ["sample"], "each is 'sample'. Pass 'row' or 'file'"),
    ("fields", ["xy"], "fields is the text 'xy'.*Pass a list: `fields="),
    ("fields", [3, [3]], "fields is .* Pass a list, each a text"),
    ("fields", [["z"]], "no field 'z'"),
    ("kind", ["tape"], "kind is 'tape'"),
    ("map", NO_FUNCTIONS, "map is .*, which cannot be found"),
    ("map", [lambda sample: sample, len, 3], 'no name. Put .* "package.module:function"'),
    ("max_skipped", NO_SHARES, "no share or number of samples"),
    ("pack", [{**TOKENS, "lenght": 5}], "pack has no option 'lenght'. Did you mean 'length'"),
    ("pack", [{"field": "ids"}], r"missing is 'length'\. Pass {"),
    ("pack", [{**TOKENS, "field": 3}], "field is 3. Pass a text"),
    ("pack", [{**TOKENS, "field": "cu_seqlens"}], "cannot be 'cu_seqlens'"),
    ("pack", [{**TOKENS, "field": "text"}], "no field 'text'"),
    ("pack", [{**TOKENS, "length": 0}], "cannot have 0 tokens"),
    ("pack", [{**TOKENS, "length": "4"}], "length is '4'"),
    ("pack", [{**TOKENS, "dtype": "float32"}], "dtype is 'float32'. Pass 'uint8' or 'uint16'"),
    ("pack", [{**TOKENS, "pad": 0.5}], "pad is 0.5"),
    ("pack", [{**TOKENS, "pad": -(2**31) - 1}], "pad is -2147483649"),
    ("pack", [{**TOKENS, "eos": 2**31}], "eos is 2147483648, but tokens are int32"),
    ("pack", [{**TOKENS, "end": 1}], "end"),
    ("pack_fields", ["all"], "pack_fields is the text 'all'"),
    ("on_error", ["ignore"], "on_error is 'ignore'. Pass 'stop' or 'skip'"),
    ("ragged", ["xy"], "ragged is the text 'xy'.*Pass a list: `ragged="),
    ("schema", [3], "schema is 3. Pass a Schema or a mapping of each text to a Field or a text"),
    ("shuffle_seed", ["1"], "shuffle_seed is '1', which is no whole number"),
    ("shuffle_seed", [-1, 2**64], "shuffle_seed is"),
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


REARRANGING = {
    "merge": lambda shards, out, **options: gdsload.merge([shards], out, **options),
    "reshard": gdsload.reshard,
    "split": lambda shards, out, **options: gdsload.split(shards, [out, f"{out}2"], [0.5], **options),
}


@pytest.fixture
def shards(tmp_path):
    with gdsload.ShardWriter(tmp_path / "d") as writer:
        writer.write_batch({"n": np.arange(20)})
    return tmp_path / "d"


CALLS = {"convert": gdsload.convert, **REARRANGING}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", sorted(RearrangeKeywords.__annotations__))
def test_a_value_of_no_type_and_a_name_of_a_letter_too_few_are_never_ignored(shards, tmp_path, call, name):
    with pytest.raises(OptionError, match=f"{name} is <object|<object .*> is no {name}|no list"):
        CALLS[call](shards, tmp_path / "out", **{name: object()})
    wrong = name[:2] + name[3:]
    with pytest.raises(OptionError, match=rf"{call}.* has no option '{wrong}'\. Did you mean '{name}'\?"):
        CALLS[call](shards, tmp_path / "out", **{wrong: 1})
    assert list(tmp_path.iterdir()) == [shards]


# Options of a kind of source, refused before its files are opened; that their types are checked is shown below.
SOURCES = [
    ("audio", {"dtype": "int16"}, "dtype is 'int16'. Pass 'float32' or 'float64'"),
    ("audio", {"dtype": "float32", "keep_encoded": True}, "`keep_encoded` keeps the files' bytes. Pass one of them"),
    *(("csv", {"delimiter": one}, "delimiter is .*Pass a single character of ASCII") for one in ("¦", "", '"')),
    ("tfrecord", {"types": {"x": "pickle"}}, "types has 'pickle' for 'x'. Supported are bytes, text, npy, image, list"),
    ("coco", {"boxes": "ltrb"}, "boxes is 'ltrb'. Pass 'xyxy' or 'xywh' or 'cxcywh'"),
    ("coco", {"size": 8}, "would cut objects off. Pass `resize='squash'`"),
    ("csv", {"types": {"x": "date"}}, "type of 'x' is 'date'"),
    ("csv", {"types": {"zip": 5}}, "types is .*a mapping of each text to a text"),
    ("images", {"keep_encoded": True, "mode": {"image": "L"}}, "keep_encoded leaves images as they are"),
    ("images", {"keep_encoded": True, "size": 8}, "keep_encoded leaves images as they are"),
    ("images", {"mode": "CMYK"}, "mode is 'CMYK'"),
    ("images", {"mode": {"a_png": "CMYK"}}, "mode is {'a_png': 'CMYK'}"),
    ("images", {"resize": "crop"}, "resize is 'crop'"),
    ("images", {"size": 0}, "size is 0"),
    ("images", {"size": True}, "size is True. Pass a whole number"),
    ("lmdb", {"decode": "pickle"}, "decode is 'pickle'. Pass 'bytes' or 'text' or 'npy' or 'image'"),
    ("mat", {"last": ["a", 5]}, "last is .*Pass a list, each a text"),
    ("mat", {"last": "X"}, r"last is the text 'X'. Pass a list: `last=\['X'\]`"),
    ("text", {"encoding": "klingon"}, "encoding is 'klingon', which Python does not know"),
    ("text", {"encoding": "utf-16"}, "lines of 'utf-16' are not read. Pass `each='file'`"),
    ("tokens", {"dtype": "float32"}, "dtype is 'float32'"),
    ("tokens", {"dtype": "token"}, "dtype is 'token'"),
    ("tokens", {"dtype": "uint16", "end": 70_000}, "end is 70000"),
    ("tokens", {"each": "token", "end": 1}, "`end` ends documents, but `each='token'` makes none"),
]


@pytest.mark.parametrize(("kind", "options", "message"), SOURCES)
def test_options_of_sources(tmp_path, kind, options, message):
    with pytest.raises(OptionError, match=message):
        source_for(str(tmp_path), kind, options)


# Options that do not fit the files.
FILES = [
    ("csv", {"fill": {"label": 1.5}}, "fill has 1.5 for field 'label', which is int64"),
    ("csv", {"fill": {"q": 1}}, "no field 'q'"),
    ("csv", {"types": {"q": "int"}}, "no field 'q'"),
    ("h5ad", {"matrix": "layers/none"}, "there is no 'layers/none'"),
    ("hdf5", {"group": "x"}, "no group"),
    ("idx", {"prefix": "x"}, "no file's name begins with 'x'"),
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
    options = {"types": {"a": "str"}, "size": 5, "delimiter": None, "mode": {"a": "L", "": "RGB"}}
    source_for(str(tmp_path), "csv", options)
    source_for(str(tmp_path), "csv", {"types": None, "mode": "RGB"})


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"torch"}))
def test_every_option_of_every_kind_is_checked(tmp_path, kind):
    """Each has an annotation, by which a value of no type at all is refused."""
    _, made = source_class(str(tmp_path), kind)
    for name in source_parameters(made):
        with pytest.raises(OptionError, match=f"{name} is <object"):
            source_for(str(tmp_path), kind, {name: object()})


@pytest.fixture
def tables(tmp_path):
    (tmp_path / "t.csv").write_text("a;b\n1;2\n3;4\n")
    return tmp_path / "t.csv"


def test_no_kind_has_an_option_of_a_name_that_convert_has():
    """The choice of fields is called the same for all kinds."""
    for kind in KINDS:
        options = source_parameters(source_class("", kind)[1]).keys()
        assert not options & {"columns", "only", *ConvertKeywords.__annotations__}


def test_a_sources_own_options_are_keywords_too(tables, tmp_path):
    gdsload.convert(tables, tmp_path / "plain", delimiter=";", types={"b": "str"})
    gdsload.convert(tables, tmp_path / "given", source_options={"delimiter": ";", "types": {"b": "str"}})
    one, other = (gdsload.ShardDataset(tmp_path / name) for name in ("plain", "given"))
    assert one.digest == other.digest
    assert (int(one[1]["a"]), one[1]["b"]) == (3, "4")
    for given, message in (
        ({"delimitr": ";"}, r"convert of kind 'csv' has no option 'delimitr'\. Did you mean 'delimiter'"),
        ({"source_options": {"delimitr": ";"}}, r"kind 'csv' has no option 'delimitr'\. Did you mean 'delimiter'"),
        ({"delimiter": ";", "source_options": {"delimiter": ","}}, "delimiter is given twice"),
    ):
        with pytest.raises(OptionError, match=message):
            gdsload.convert(tables, tmp_path / "out", **given)
    with pytest.raises(OptionError, match=r"Did you mean 'shuffle_seed'\?"):
        plan(tables, shufle_seed=1)


def test_a_source_that_is_made_has_its_options_already(tmp_path, tables):
    from gdsload.conversion.sources.csv_files import CsvSource

    source = CsvSource(str(tables), delimiter=";")
    gdsload.convert(source, tmp_path / "out")
    for options in ({"kind": "csv"}, {"source_options": {"delimiter": ","}}):
        with pytest.raises(OptionError, match="the source is made already"):
            gdsload.convert(source, tmp_path / "none", **options)
    with pytest.raises(OptionError, match="convert has no option 'delimiter'"):
        gdsload.convert(source, tmp_path / "none", delimiter=",")


def types_of(annotation):
    """The choices of an annotation; where words are listed, it is a text."""
    choices = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else [annotation]
    return {str if get_origin(one) is Literal else one for one in choices} - {NoneType}


def test_type_checkers_know_the_options_of_all_kinds():
    found = {}
    for kind in KINDS:
        for name, option in source_parameters(source_class("", kind)[1]).items():
            found.setdefault(name, set()).update(types_of(option.annotation))
    assert found == {name: types_of(one) for name, one in get_type_hints(SourceKeywords).items()}


def test_help_lists_the_options():
    for function, own in (
        (gdsload.convert, ["source", "out"]), (gdsload.merge, ["paths", "out"]), (gdsload.reshard, ["path", "out"]),
        (gdsload.split, ["path", "outs", "sizes", "seed"]),
    ):  # fmt: skip
        shown = list(inspect.signature(function).parameters)
        assert shown[: len(own)] == own
        assert {*shown[len(own) :]} >= {"shuffle_seed", "workers", "overwrite"}
        assert ("size" in shown) == ("delimiter" in shown) == (function is gdsload.convert)
