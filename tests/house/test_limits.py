"""tools/limits.py lets through what the house allows, names what it does not, and counts what may only become less."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tools import limits


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return root


def messages(root: Path, files: dict[str, str]) -> list[str]:
    return [str(violation) for violation in limits.violations(written(root, files))]


LINES = "        x = 1\n"
DOCSTRING = '    """One.\n' + "    more\n" * 40 + '    """\n'


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("gdsload/a.py", "x = 1\n" * 400, None),
        ("gdsload/a.py", "x = 1\n" * 401, ":401: the file has 401 lines, at most 400 are allowed"),
        ("tests/a.py", "x = 1\n" * 600, None),
        ("tests/a.py", "x = 1\n" * 601, ":601: the file has 601 lines, at most 600 are allowed"),
        ("gdsload/a.py", f"@decorated\ndef f():\n{LINES * 49}", None),
        ("gdsload/a.py", f"@decorated\nasync def f():\n{LINES * 50}", ":2: f has 51 lines, at most 50 are allowed"),
        ("gdsload/a.py", f"def f():\n{DOCSTRING}{LINES[4:] * 49}", None),
        ("gdsload/a.py", f"def f():\n    def g():\n{LINES * 49}", ":1: f has 51 lines, at most 50 are allowed"),
        ("gdsload/a.py", '"""A What."""\n', None),
        ("gdsload/a.py", '"""What it is."""\n', ":1: the docstring begins with What: say what it is or does"),
        ("gdsload/a.py", "def f(a, b, /, c, d, *args, e, f, g, **kwargs): ...", None),
        ("gdsload/a.py", "def f(a, b, /, c, d, *, e, f, g, h): ...", ":1: f has 8 parameters, at most 7 are allowed"),
        ("gdsload/a.py", "class C:\n    def f(cls, a, b, c, d, e, f, g): ...", None),
        ("gdsload/a.py", "def f(self, a, b, c, d, e, f, g): ...", ":1: f has 8 parameters, at most 7 are allowed"),
        ("gdsload/utils.py", "", "says nothing"),
        ("tools/common/__init__.py", "", "says nothing"),
        ("gdsload/a.py", "x = 1\ndef f(:\n", ":2: cannot be parsed"),
    ],
)
def test_a_file_is_within_the_limits_or_named(tmp_path: Path, file: str, text: str, said: str | None):
    found = messages(tmp_path, {"gdsload/before.py": "", file: text})
    assert len(found) == (said is not None)
    assert all(said in one and one.startswith(file) for one in found)


def test_a_function_is_exempt_by_file_and_name_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(limits.MOST, "keywords of DataLoader", 60)
    ((file, name),) = limits.LONG_SIGNATURES
    kind, _, method = name.partition(".")
    parameters = "".join(f"        p{number},\n" for number in range(60))
    signature = f"class {kind}:\n    def {method}(\n        self,\n{parameters}    ):\n"
    assert messages(tmp_path, {file: signature + LINES * 50}) == []
    assert len(messages(tmp_path, {file: signature + LINES * 51})) == 1
    others = {"gdsload/loader/other.py": signature + LINES, file: signature.replace(kind, "Another") + LINES}
    assert len(messages(tmp_path, others)) == 4  # too many parameters, and too many lines, in both


@pytest.mark.parametrize(
    ("back", "cycle"),
    [
        ("import gdsload.a", True),
        ("from gdsload.a import x", True),
        ("from . import a", True),
        ("try:\n    import gdsload.a\nexcept ImportError:\n    pass", True),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    import gdsload.a", True),
        ("def f():\n    import gdsload.a", False),
        ("import typing\nif typing.TYPE_CHECKING:\n    import gdsload.a", False),
    ],
)
def test_an_import_cycle_is_named_once_however_it_is_written(tmp_path: Path, back: str, cycle: bool):
    named = ["gdsload/a.py:1: import cycle: gdsload.a -> gdsload.b -> gdsload.a"] * cycle
    assert messages(tmp_path, {"gdsload/a.py": "import gdsload.b", "gdsload/b.py": back}) == named


def test_a_package_may_import_its_modules_but_they_may_not_import_from_it(tmp_path: Path):
    package = {"gdsload/p/__init__.py": "from gdsload.p.a import x", "gdsload/p/b.py": "x = 1"}
    assert messages(tmp_path, {**package, "gdsload/p/a.py": "from gdsload.p import b"}) == []
    (found,) = messages(tmp_path, {**package, "gdsload/p/a.py": "from gdsload.p import x"})
    assert found == "gdsload/p/__init__.py:1: import cycle: gdsload.p -> gdsload.p.a -> gdsload.p"


POOLS = """
class First:
    def f(self): self.threads = [threading.Thread(target=g) for _ in range(3)]
class W(Thread): ...
def second():
    while True: W()
class Third(concurrent.futures.ThreadPoolExecutor): ...
def fourth():
    with ThreadPoolExecutor(3) as threads: ...
class OneThread:
    def f(self): self.thread = threading.Thread(target=g)
def of_others(executor: Executor) -> Future:
    return executor.submit(g)
"""
FUTURES = """
class Plain:
    gate = threading.Lock()
    def wait(self): ...
class Inherits(Plain): ...
class Queued:
    def f(self): self.done = SimpleQueue[int]()
    def result(self): ...
class OfAGpu:
    def f(self): self.event = torch.cuda.Event()
    def wait(self): ...
class Cache:
    lock = threading.Lock()
    def get(self): ...
"""


def test_counts_and_what_is_more_than_the_maximum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    root = written(
        tmp_path,
        {
            "gdsload/system/pools.py": POOLS,
            "gdsload/system/futures.py": FUTURES,
            "gdsload/testing/a.py": POOLS + FUTURES,
            "gdsload/loader/loader.py": "class DataLoader:\n    def __init__(self, a, /, b=1, *, c=0, **other): ...\n",
            "gdsload/engine/landed.py": "from gdsload.loader.loader import DataLoader, other\nclass Landed: ...\n",
            "gdsload/py.typed": "\n",
            "tests/loader/test_a.py": "class D: ...\n",
            "CHANGELOG.md": "×\n",
        },
    )
    sources, failed = limits.read_sources(root)
    assert failed == []
    found = {one.what: one.number for one in limits.counts(root, sources)}
    assert found == {
        "lines in gdsload": 2 * (POOLS + FUTURES).count("\n") + 4,
        "lines in tests": 1,
        "keywords of DataLoader": 3,
        "classes in loader, engine, backends and kernels": 2,
        "classes in the gather of a cold block shuffle": 2,
        "pools of threads": 4,
        "futures": 3,
        "bytes of CHANGELOG.md": 3,
    }
    for what, number in found.items():
        monkeypatch.setitem(limits.MOST, what, number)
    assert limits.violations(root) == []
    assert limits.main(["--counts", str(root)]) == 0
    assert "4 pools of threads, at most 4 are allowed" in capsys.readouterr().out
    monkeypatch.setitem(limits.MOST, "futures", 2)
    (said,) = map(str, limits.violations(root))
    assert said.startswith("gdsload:1: 3 futures, at most 2 are allowed: ")


def test_the_command_prints_every_violation_and_refuses_a_folder_where_it_would_check_nothing(tmp_path: Path, capsys):
    assert limits.main([str(tmp_path)]) == 1
    assert "has no folder gdsload" in capsys.readouterr().out
    expected = messages(tmp_path, {"gdsload/utils.py": "", "tests/misc.py": ""})
    run = subprocess.run(
        [sys.executable, limits.__file__, tmp_path], capture_output=True, text=True, timeout=30, check=False
    )
    assert (run.returncode, run.stdout.splitlines(), len(expected)) == (1, expected, 2)
