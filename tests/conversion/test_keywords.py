"""Keywords of conversions: none is ignored, and the error says which was meant."""

from __future__ import annotations

import inspect
from types import NoneType, UnionType
from typing import get_args, get_origin, get_type_hints

import pytest

import gdsload
from gdsload.conversion.keywords import ConvertKeywords, RearrangeKeywords, SourceKeywords
from gdsload.conversion.option_types import source_parameters
from gdsload.conversion.recognise import KINDS, source_class
from gdsload.conversion.runner import plan
from gdsload.errors import OptionError


@pytest.fixture
def tables(tmp_path):
    (tmp_path / "t.csv").write_text("a;b\n1;2\n3;4\n")
    return tmp_path / "t.csv"


@pytest.fixture
def shards(tmp_path):
    with gdsload.ShardWriter(tmp_path / "d") as writer:
        for number in range(20):
            writer.write({"n": number})
    return tmp_path / "d"


CALLS = {
    "convert": gdsload.convert,
    "merge": lambda shards, out, **options: gdsload.merge([shards], out, **options),
    "reshard": gdsload.reshard,
    "split": lambda shards, out, **options: gdsload.split(shards, [out, f"{out}2"], [0.5], **options),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", sorted(RearrangeKeywords.__annotations__))
def test_a_letter_too_few_is_never_ignored(shards, tmp_path, call, name):
    wrong = name[:2] + name[3:]
    with pytest.raises(OptionError, match=rf"{call}.* has no option '{wrong}'\. Did you mean '{name}'\?"):
        CALLS[call](shards, tmp_path / "out", **{wrong: 1})
    assert not (tmp_path / "out").exists()


def test_no_kind_has_an_option_of_a_name_that_convert_has():
    """The choice of fields is called the same for all kinds."""
    for kind in KINDS:
        assert (
            not {"columns", "only", *ConvertKeywords.__annotations__}
            & source_parameters(source_class("", kind)[1]).keys()
        )


def test_a_name_like_none_is_not_guessed(shards, tmp_path):
    with pytest.raises(OptionError, match=r"has no option 'zzz'\. Its options are .*shuffle_seed"):
        gdsload.merge([shards], tmp_path / "out", zzz=1)
    with pytest.raises(OptionError, match=r"Did you mean 'seed'\?"):
        gdsload.split(shards, [tmp_path / "a", tmp_path / "b"], [0.5], sed=1)
    with pytest.raises(OptionError, match="no option 'kind'"):
        gdsload.reshard(shards, tmp_path / "out", kind="numpy")


def test_a_sources_own_options_are_keywords_too(tables, tmp_path):
    gdsload.convert(tables, tmp_path / "plain", delimiter=";", types={"b": "str"})
    gdsload.convert(tables, tmp_path / "given", source_options={"delimiter": ";", "types": {"b": "str"}})
    one, other = (gdsload.ShardDataset(tmp_path / name) for name in ("plain", "given"))
    assert one.digest == other.digest
    assert (int(one[1]["a"]), one[1]["b"]) == (3, "4")
    with pytest.raises(OptionError, match=r"convert of kind 'csv' has no option 'delimitr'\. Did you mean 'delimiter'"):
        gdsload.convert(tables, tmp_path / "out", delimitr=";")
    with pytest.raises(OptionError, match=r"kind 'csv' has no option 'delimitr'\. Did you mean 'delimiter'"):
        gdsload.convert(tables, tmp_path / "out", source_options={"delimitr": ";"})
    with pytest.raises(OptionError, match="delimiter is given twice"):
        gdsload.convert(tables, tmp_path / "out", delimiter=";", source_options={"delimiter": ","})
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
    return {*(get_args(annotation) if get_origin(annotation) is UnionType else [annotation])} - {NoneType}


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
