"""Reasons in errors: a library's words and this package's, and no text of Python's that tells nothing of a file."""

import sys
from types import ModuleType

import numpy as np
import pytest

import gdsload
from gdsload.conversion.reasons import in_words, of_user, reading
from gdsload.errors import ConversionError, FormatError, OptionError


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
    with pytest.raises(kind) as caught, reading("it cannot be read", "a.bin", *errors, remedy="Copy it again."):
        raise error
    found = caught.value
    if kind is FormatError:
        said = (f"it cannot be read: {in_words(error)}", "a.bin", "Copy it again.")
        assert (found.message, found.file, found.remedy) == said
    else:
        assert found is error


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


@pytest.mark.parametrize("wrong", [0, 2])
def test_a_dataset_that_raises(left_out, wrong):
    said = f"test_reasons:Table: the dataset's __getitem__({wrong}) failed: KeyError: 'label'"
    left_out(Table(wrong), {f"sample {wrong}": said})


class NoLength(Table):
    def __len__(self):
        raise KeyError("index")


def broken():
    return {}["config"]


def needs(argument):
    return argument


HERE = __name__


@pytest.mark.parametrize(
    ("source", "options", "kind", "said"),
    [
        (NoLength(0), {}, FormatError, "test_reasons:NoLength: the dataset's __len__ failed: KeyError: 'index'"),
        (f"{HERE}:broken", {}, FormatError, "broken: the call without arguments failed: KeyError: 'config'"),
        (f"{HERE}:needs", {}, FormatError, "needs: the call without arguments failed: TypeError"),
        ({"x": np.zeros(3)}, {"map": "raising:f"}, ConversionError, "map 'raising:f' failed: KeyError: 'label'"),
        ("cracked:data", {}, OptionError, "cannot be found: its import ends in KeyError: 'path'"),
        ({"x": np.zeros(3)}, {"map": "cracked:f"}, OptionError, "cannot be found: its import ends in KeyError: 'path'"),
    ],
)
def test_code_of_users_that_raises(tmp_path, monkeypatch, source, options, kind, said):
    module = ModuleType("raising")
    module.f = lambda sample: {"y": sample["label"]}
    monkeypatch.setitem(sys.modules, "raising", module)
    (tmp_path / "cracked.py").write_text("settings = {}['path']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(kind, match=said):
        gdsload.convert(source, tmp_path / "out", workers=1, **options)
