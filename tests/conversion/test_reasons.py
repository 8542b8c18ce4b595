"""Reasons in errors: a library's words and this package's, and never Python's bare error."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import numpy as np
import pytest

import gdsload
from gdsload.conversion.reasons import in_words, of_user, reading
from gdsload.errors import ConversionError, FormatError, OptionError


def caught(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def in_the_package(code):
    """A function of this code, as if it stood in a module of the package."""
    space = {"np": np, "json": json}
    exec(compile(f"def f():\n    {code}\n", gdsload.__file__.replace("__init__", "none"), "exec"), space)
    return space["f"]


@pytest.mark.parametrize(
    ("error", "errors", "kind"),
    [
        (KeyError("bbox"), [KeyError, OSError], FormatError),
        (RuntimeError("no magic"), [], FormatError),
        (RuntimeError("no magic"), [KeyError], RuntimeError),
        (MemoryError(), [], MemoryError),
        (OptionError("it needs h5py"), [ValueError], OptionError),
    ],
)
def test_errors_of_readers_are_those_of_the_file(error, errors, kind):
    def read():
        with reading("it cannot be read", "a.bin", *errors, remedy="Copy it again."):
            raise error

    found = caught(read)
    assert type(found) is kind
    if kind is FormatError:
        said = (f"it cannot be read: {in_words(error)}", "a.bin", "Copy it again.")
        assert (found.message, found.file, found.remedy) == said
    else:
        assert found is error


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("{}['bbox']", "it has no 'bbox'"),
        ("[][3]", "a value in it is not of the kind that it must be"),
        ("(7).items()", "a value in it is not of the kind that it must be"),
        ("int('x')", "a value in it is not of the kind that it must be"),
        ("a, b = [1]", "a value in it is not of the kind that it must be"),
        ("np.zeros(3).reshape(2, 2)", "a value in it is not of the kind that it must be"),
        ("list(zip([1], [], strict=True))", "a value in it is not of the kind that it must be"),
        ("json.loads(None)", "a value in it is not of the kind that it must be"),
        ("raise ValueError('it ends too early')", "it ends too early"),
        ("raise KeyError(\"Unable to open object (object 'x' doesn't exist)\")",
         "Unable to open object (object 'x' doesn't exist)"),
        ("json.loads('{')", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("open('/none/such')", "No such file or directory"),
        ("b'\\xff'.decode()", "a text in it is no UTF-8"),
        ("raise RecursionError('maximum')", "it is nested too deeply"),
        ("raise ValueError('x' * 1000)", "x" * 200),
    ],
)  # fmt: skip
def test_python_is_not_heard(code, words):
    assert in_words(caught(in_the_package(code))) == words


def test_an_error_of_this_package_is_its_message():
    assert in_words(FormatError("it is cut", file="a", remedy="Copy it.")) == "it is cut"


def test_a_users_error_is_named_as_theirs():
    with (
        pytest.raises(FormatError, match="d: the call failed: KeyError: 'x'$") as info,
        of_user("the call failed", "d"),
    ):
        {}["x"]
    assert isinstance(info.value.__cause__, KeyError)
    for error in (OptionError("no"), MemoryError(), KeyboardInterrupt()):
        with pytest.raises(type(error), match="^(no)?$") as info, of_user("the call failed"):
            raise error
        assert info.value is error


class Table:
    def __init__(self, wrong):
        self.wrong = wrong

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return {"x": [1, 2, 3][index] if index != self.wrong else {}["label"]}


class NoLength(Table):
    def __len__(self):
        raise KeyError("index")


def test_a_dataset_whose_length_raises(tmp_path):
    with pytest.raises(FormatError, match="test_reasons:NoLength: the dataset's __len__ failed: KeyError: 'index'"):
        gdsload.convert(NoLength(0), tmp_path / "out", workers=1)


@pytest.mark.parametrize("wrong", [0, 2])
def test_a_dataset_that_raises(left_out, wrong):
    said = f"test_reasons:Table: the dataset's __getitem__({wrong}) failed: KeyError: 'label'"
    left_out(Table(wrong), {f"sample {wrong}": said})


def test_a_map_that_raises(tmp_path, monkeypatch):
    module = ModuleType("raising")
    module.f = lambda sample: {"y": sample["label"]}
    monkeypatch.setitem(sys.modules, "raising", module)
    with pytest.raises(ConversionError, match="map 'raising:f' failed: KeyError: 'label'"):
        gdsload.convert({"x": np.zeros(3)}, tmp_path / "out", workers=1, map="raising:f")


def test_a_module_that_cannot_be_imported(tmp_path, monkeypatch):
    (tmp_path / "cracked.py").write_text("settings = {}['path']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for options in ({"source": "cracked:data"}, {"source": {"x": np.zeros(3)}, "map": "cracked:f"}):
        with pytest.raises(OptionError, match="cannot be found: its import ends in KeyError: 'path'") as info:
            gdsload.convert(out=tmp_path / "out", workers=1, **options)
        assert isinstance(info.value.__cause__.__cause__, KeyError)


def broken():
    return {}["config"]


def test_a_function_of_a_dataset_that_raises(tmp_path):
    with pytest.raises(FormatError, match="test_reasons:broken: the call without arguments failed: KeyError: 'config'"):
        gdsload.convert(f"{__name__}:broken", tmp_path / "out", workers=1)
    with pytest.raises(FormatError, match="caught: the call without arguments failed: TypeError"):
        gdsload.convert(f"{__name__}:caught", tmp_path / "out", workers=1)
