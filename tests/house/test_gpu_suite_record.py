"""tools/gpu_suite.py keeps a record of a whole run, and takes it for no other tree and for no part of the suite."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tools import gpu_suite

GOOD = {"arguments": [], "require": "cuda,cufile,two", "status": 0, "counts": {"passed": 9, "skipped": 1}}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two tests that pass, one that is skipped, and one that fails if a file is there."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take most of the time of such a run
    files = {
        "gdsload/__init__.py": "",
        "gdsload/a/b.py": "x = 1\n",
        "tools/gpu_suite.py": Path(gpu_suite.__file__).read_text(encoding="utf-8"),
        "pyproject.toml": '[tool.pytest.ini_options]\ntestpaths = ["tests"]\n',
        "benchmarks/results/keep": "",
        "tests/test_some.py": "import pathlib, pytest\n\n\n@pytest.mark.parametrize('n', [1, 2])\ndef test_good(n):\n"
        "    assert not pathlib.Path('bad').exists()\n\n\n"
        "def test_skipped():\n    pytest.skip('for a reason')\n\n\n"
        "@pytest.mark.xfail\ndef test_known():\n    raise ValueError\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def check(tree: Path, capfd: pytest.CaptureFixture[str], **changed: object) -> str:
    """The output of `--check` for a record with such values."""
    record = {**GOOD, "gdsload": gpu_suite.tree_hash(tree), "machine": {"gpu": "one"}, **changed}
    (tree / gpu_suite.RECORD).write_text(json.dumps(record), encoding="utf-8")
    status = gpu_suite.main(["--check"], tree)
    out, err = capfd.readouterr()
    assert (status, bool(out), bool(err)) in {(0, True, False), (1, False, True)}
    assert len((out + err).splitlines()) == 1
    return "" if status == 0 else err


@pytest.mark.parametrize(
    "change",
    [
        lambda package: (package / "a/b.py").write_text("x = 2\n"),
        lambda package: (package / "a/b.py").rename(package / "a/c.py"),
        lambda package: (package / "c.json").touch(),
        lambda package: (package / "__init__.py").unlink(),
    ],
    ids=["changed", "renamed", "added", "removed"],
)
def test_the_hash_is_that_of_all_files_of_the_package(tree, capfd, change):
    before = gpu_suite.tree_hash(tree)
    assert check(tree, capfd) == ""
    change(tree / "gdsload")
    assert gpu_suite.tree_hash(tree) != before
    assert "gdsload/ has changed since the run" in check(tree, capfd, gdsload=before)


def test_the_hash_is_not_that_of_docstrings(tree):
    module = tree / "gdsload/a/b.py"
    text = '"""{0}"""\n\n\nclass A:\n    """{0}\n    """\n    async def f(self):\n        "{0}"; return "ü", {1}\n'
    found = []
    for words, value in [("one", 1), ("other é\\n", 1), ("one", 2)]:
        module.write_text(text.format(words, value), encoding="utf-8")
        found.append(gpu_suite.tree_hash(tree))
    assert found[0] == found[1] != found[2]
    module.write_text("x = 1\n'''no docstring'''\n")
    before = gpu_suite.tree_hash(tree)
    module.write_text("x = 1\n'''another text'''\n")
    assert gpu_suite.tree_hash(tree) != before


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"arguments": ["-k", "one two"]}, "a part of the suite: pytest got -k 'one two'"),
        ({"require": "cuda,cufile"}, "GDSLOAD_REQUIRE lacked two"),
        ({"counts": {"passed": 9, "failed": 2, "errors": 1}}, "3 tests failed"),
        ({"counts": {"passed": 0}}, "no test has passed"),
        ({"counts": None}, "no record of the suite"),
        ({"status": 2}, "pytest ended with status 2"),
    ],
)
def test_a_record_that_does_not_say_enough_is_refused(tree, capfd, changed, match):
    assert match in check(tree, capfd, **changed)


@pytest.mark.parametrize("text", [None, "", "[]", "{"])
def test_what_is_no_record_is_refused(tree, capfd, text):
    if text is not None:
        (tree / gpu_suite.RECORD).write_text(text, encoding="utf-8")
    assert gpu_suite.main(["--check"], tree) == 1
    assert re.search("cannot be read|no record", capfd.readouterr().err)


def git(tree, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(["git", *who, *words], cwd=tree, check=True, capture_output=True, text=True).stdout.strip()


def test_a_whole_run_is_recorded_and_taken(tree, capfd, monkeypatch):
    """With its commit, which is marked where files differ from it."""
    monkeypatch.setenv("GDSLOAD_REQUIRE", "cuda,cufile,two")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    (tree / ".gitignore").write_text("__pycache__/\n.pytest_cache/\n")
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "all")
    head = git(tree, "rev-parse", "HEAD")
    assert gpu_suite.main([], tree) == 0
    record = json.loads((tree / gpu_suite.RECORD).read_text(encoding="utf-8"))
    assert record["counts"] == {"passed": 2, "failed": 0, "errors": 0, "skipped": 1, "xfailed": 1, "xpassed": 0}
    assert record["skips"] == {"for a reason": 1}
    assert (record["arguments"], record["commit"], record["processes"]) == ([], head, 1)
    assert record["versions"]["pytest"] == pytest.__version__
    capfd.readouterr()
    assert gpu_suite.main(["--check"], tree) == 0
    (tree / "bad").touch()
    assert gpu_suite.main([], tree) == 1
    record = json.loads((tree / gpu_suite.RECORD).read_text(encoding="utf-8"))
    assert record["commit"] == f"{head}-dirty"
    assert record["failures"] == ["tests/test_some.py::test_good[1]", "tests/test_some.py::test_good[2]"]
    assert gpu_suite.main(["--check"], tree) == 1
    assert "2 tests failed" in capfd.readouterr().err


def test_a_part_is_recorded_where_that_is_asked_for_and_never_taken(tree, capfd, monkeypatch):
    monkeypatch.setenv("GDSLOAD_REQUIRE", "cuda,cufile,two")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k good")
    out = tree / "part.json"
    assert gpu_suite.main(["--out", str(out)], tree) == 0
    assert not (tree / gpu_suite.RECORD).exists()
    found = json.loads(out.read_text(encoding="utf-8"))
    assert (found["counts"]["passed"], found["commit"]) == (2, None)
    capfd.readouterr()
    assert gpu_suite.main(["--check", "--out", str(out)], tree) == 1
    assert "a part of the suite: pytest got -k good" in capfd.readouterr().err


def test_a_part_is_not_recorded_where_nobody_asks_for_it(tree, monkeypatch):
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    assert gpu_suite.main(["-k", "good"], tree) == 0
    assert not (tree / gpu_suite.RECORD).exists()
