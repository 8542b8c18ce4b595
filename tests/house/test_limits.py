"""tools/limits.py lets through what the house allows, and names what it does not."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tools import limits


def messages(root: Path, files: dict[str, str]) -> list[str]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return [str(violation) for violation in limits.violations(root)]


@pytest.mark.parametrize(
    ("folder", "limit"),
    [("gdsload", 400), ("benchmarks", 400), ("examples", 400), ("tools", 400), ("tests", 600)],
)
def test_a_file_may_be_as_long_as_the_limit_and_no_longer(tmp_path: Path, folder: str, limit: int):
    assert messages(tmp_path, {f"{folder}/a.py": "x = 1\n" * limit}) == []
    assert messages(tmp_path, {f"{folder}/a.py": "x = 1\n" * (limit + 1)}) == [
        f"{folder}/a.py:{limit + 1}: the file has {limit + 1} lines, at most {limit} are allowed"
    ]


@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_a_function_may_be_as_long_as_the_limit_and_no_longer(tmp_path: Path, keyword: str):
    body = "    x = 1\n" * 49
    assert messages(tmp_path, {"gdsload/a.py": f"@decorated\n{keyword} f():\n{body}"}) == []
    assert messages(tmp_path, {"gdsload/a.py": f"@decorated\n{keyword} f():\n{body}    y = 2\n"}) == [
        "gdsload/a.py:2: f has 51 lines, at most 50 are allowed"
    ]


@pytest.mark.parametrize("word", ["What", "Who", "Whether"])
def test_a_docstring_of_the_package_is_no_question(tmp_path: Path, word: str):
    text = f'x = 1\n"""{word} it is."""\n'
    assert messages(tmp_path, {"gdsload/a.py": text, "tests/b.py": text, "gdsload/c.py": f'"""A {word}."""\n'}) == [
        f"gdsload/a.py:2: the docstring begins with {word}: say what it is or does"
    ]


def test_a_docstring_does_not_count_but_a_nested_function_does(tmp_path: Path):
    docstring = '    """One.\n' + "    more\n" * 40 + '    """\n'
    assert messages(tmp_path, {"gdsload/a.py": "def f():\n" + docstring + "    x = 1\n" * 49}) == []
    nested = "    def g():\n" + "        x = 1\n" * 49
    assert messages(tmp_path, {"gdsload/a.py": "def f():\n" + nested}) == [
        "gdsload/a.py:1: f has 51 lines, at most 50 are allowed"
    ]


def test_a_function_may_have_as_many_parameters_as_the_limit_and_no_more(tmp_path: Path):
    assert messages(tmp_path, {"gdsload/a.py": "def f(a, b, /, c, d, *args, e, f, g, **kwargs): ..."}) == []
    assert messages(tmp_path, {"gdsload/a.py": "def f(a, b, /, c, d, *, e, f, g, h): ..."}) == [
        "gdsload/a.py:1: f has 8 parameters, at most 7 are allowed"
    ]


def test_a_function_is_exempt_by_file_and_name_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(limits.MOST, "keywords of DataLoader", 60)
    ((file, name),) = limits.LONG_SIGNATURES
    kind, _, method = name.partition(".")
    parameters = "".join(f"        p{number},\n" for number in range(60))
    signature = f"class {kind}:\n    def {method}(\n        self,\n{parameters}    ):\n"
    body = "        x = 1\n"
    assert messages(tmp_path, {file: signature + body * 50}) == []
    assert len(messages(tmp_path, {file: signature + body * 51})) == 1
    others = {"gdsload/loader/other.py": signature + body, file: signature.replace(kind, "Another") + body}
    assert len(messages(tmp_path, others)) == 4  # too many parameters, and too many lines, in both


@pytest.mark.parametrize("first", ["self", "cls"])
def test_only_a_method_may_have_self_besides(tmp_path: Path, first: str):
    function = f"def f({first}, a, b, c, d, e, f, g): ..."
    assert messages(tmp_path, {"gdsload/a.py": f"class C:\n    {function}"}) == []
    assert messages(tmp_path, {"gdsload/a.py": function}) == [
        "gdsload/a.py:1: f has 8 parameters, at most 7 are allowed"
    ]


@pytest.mark.parametrize(
    "path", ["gdsload/utils.py", "tests/_helpers.py", "tools/common/__init__.py", "gdsload/x/misc.py"]
)
def test_a_module_must_be_named_after_something(tmp_path: Path, path: str):
    (found,) = messages(tmp_path, {path: ""})
    assert found.startswith(f"{path}:1: ")
    assert "says nothing" in found


@pytest.mark.parametrize(
    "back",
    [
        "import gdsload.a",
        "from gdsload import a",
        "from gdsload.a import x",
        "from . import a",
        "from .a import x",
        "try:\n    import gdsload.a\nexcept ImportError:\n    pass",
        "class C:\n    import gdsload.a",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import gdsload.a",
    ],
)
def test_an_import_cycle_is_named_however_it_is_written(tmp_path: Path, back: str):
    (found,) = messages(tmp_path, {"gdsload/a.py": "import gdsload.b", "gdsload/b.py": back})
    assert found == "gdsload/a.py:1: import cycle: gdsload.a -> gdsload.b -> gdsload.a"


@pytest.mark.parametrize(
    "back",
    [
        "def f():\n    import gdsload.a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import gdsload.a",
        "import typing\nif typing.TYPE_CHECKING:\n    import gdsload.a",
    ],
)
def test_an_import_that_does_not_run_at_import_closes_no_cycle(tmp_path: Path, back: str):
    assert messages(tmp_path, {"gdsload/a.py": "import gdsload.b", "gdsload/b.py": back}) == []


def test_a_package_may_import_its_modules_but_they_may_not_import_from_it(tmp_path: Path):
    package = {"gdsload/p/__init__.py": "from gdsload.p.a import x", "gdsload/p/b.py": "x = 1"}
    assert messages(tmp_path, {**package, "gdsload/p/a.py": "from gdsload.p import b"}) == []
    (found,) = messages(tmp_path, {**package, "gdsload/p/a.py": "from gdsload.p import x"})
    assert found == "gdsload/p/__init__.py:1: import cycle: gdsload.p -> gdsload.p.a -> gdsload.p"


def test_a_cycle_through_several_modules_is_named_once(tmp_path: Path):
    ring = {f"gdsload/m{i}.py": f"import gdsload.m{(i + 1) % 4}" for i in range(4)}
    entry = {"gdsload/before.py": "import gdsload.m2"}
    (found,) = messages(tmp_path, {**ring, **entry})
    assert found.count(" -> ") == 4


def test_a_file_that_cannot_be_parsed_is_a_violation(tmp_path: Path):
    (found,) = messages(tmp_path, {"gdsload/a.py": "x = 1\ndef f(:\n"})
    assert found.startswith("gdsload/a.py:2: cannot be parsed")


def test_the_command_prints_every_violation_and_fails(tmp_path: Path):
    expected = messages(tmp_path, {"gdsload/utils.py": "", "tests/misc.py": ""})
    assert len(expected) == 2
    run = subprocess.run(
        [sys.executable, limits.__file__, tmp_path], capture_output=True, text=True, timeout=30, check=False
    )
    assert (run.returncode, run.stdout.splitlines()) == (1, expected)


def test_the_command_passes_in_silence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert messages(tmp_path, {"gdsload/a.py": "x = 1"}) == []
    assert limits.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""


def test_the_command_refuses_a_folder_where_it_would_check_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert limits.main([str(tmp_path)]) == 1
    assert "has no folder gdsload" in capsys.readouterr().out
