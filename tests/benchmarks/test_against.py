"""The comparison with another tree of gdsload: its verdict, the trees, and one tiny run of it."""

import ast
import json
import subprocess
import sys

import pytest

from benchmarks.against import __main__ as against
from benchmarks.against.cases import cpu_names, gpu_names
from benchmarks.against.trees import CHECKED_OUT, TreeError, opened
from benchmarks.against.verdict import ALLOWED, judge

TINY = ["--small", "--rounds", "2", "--cases", "tokens-shuffled/gdsload"]
IMPORTS = """
import sys
from benchmarks import contenders, worker
from benchmarks.gpu.suite import worker as gpu_worker
for row in contenders.CONTENDERS.values():
    if row.package == "gdsload":
        contenders.load(row.name)
print(*(module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "benchmarks"), sep="\\n")
"""

# Samples a second of eight rounds, as recorded on two shared cores: a spread of some percent, and a drift.
BEFORE = [2.31e6, 2.36e6, 2.28e6, 2.40e6, 2.35e6, 2.29e6, 2.41e6, 2.33e6]
AGAIN = [2.34e6, 2.30e6, 2.33e6, 2.37e6, 2.31e6, 2.35e6, 2.38e6, 2.30e6]
NOISE = [1.12, 0.71, 1.31, 0.64, 0.98, 0.83, 1.20, 0.69]


def scaled(rates, factor):
    return [rate * factor for rate in rates]


@pytest.mark.parametrize(
    ("now", "word"),
    [
        (AGAIN, "equal"),
        (scaled(AGAIN, 0.98), "equal"),
        (scaled(AGAIN, 0.90), "slower"),
        (scaled(AGAIN, 1.15), "faster"),
        (scaled(BEFORE, 1 - ALLOWED - 0.001), "slower"),
        (scaled(BEFORE, 1 - ALLOWED + 0.001), "equal"),
        ([rate * noise for rate, noise in zip(BEFORE, NOISE, strict=True)], "unclear"),
    ],
)
def test_the_verdict_on_recorded_rates(now, word):
    found = judge(now, BEFORE)
    assert found.word == word
    assert found.q1 <= found.q3


def test_more_rounds_tell_more():
    noisy = [rate * (0.93 if number % 2 else 1.07) for number, rate in enumerate(scaled(BEFORE, 0.92))]
    assert judge(noisy, BEFORE).word == "unclear"
    assert judge(noisy * 8, BEFORE * 8).word == "slower"


@pytest.mark.slow
def test_the_same_tree_twice_end_to_end(tmp_path, capsys, contenders_here):
    out = tmp_path / "against.json"
    with contenders_here():
        status = against.main([str(CHECKED_OUT), *TINY, "--json", str(out), "--work-dir", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    record = json.loads(out.read_text(encoding="utf-8"))
    (case,) = record["cases"]
    assert "failed" not in case
    assert {name: len(trials) for name, trials in case["trials"].items()} == {"now": 2, "before": 2}
    assert all(trial["rate"] > 0 and trial["resident"] == 1 for trials in case["trials"].values() for trial in trials)
    assert record["commits"]["now"] == record["commits"]["before"]
    assert status == (case["word"] == "slower")  # of kilobytes: the numbers mean nothing
    text = capsys.readouterr().out
    assert case["name"] in text
    assert "numbers mean nothing" in text
    assert str(tmp_path) not in json.dumps(record)  # a record is published: no paths of the machine


@pytest.mark.slow
def test_the_suite_for_a_gpu_runs_too_and_a_tree_that_reads_wrong_bytes_does_not_pass(tmp_path, capsys):
    """A folder whose loader hands out its second batch twice; in processes, each with its own tree's package."""
    package = tmp_path / "tree/gdsload"
    package.mkdir(parents=True)
    real = CHECKED_OUT / "gdsload/__init__.py"
    package.joinpath("__init__.py").write_text(
        f"__path__ = [{str(real.parent)!r}]\n"
        "from gdsload.loader.loader import DataLoader as Real\n"
        "from gdsload.system.version import __version__\n"
        "class DataLoader(Real):\n"
        "    def __iter__(self):\n"
        "        batches = list(super().__iter__())\n"
        "        return iter([batches[1], *batches[1:]])\n"
    )
    options = ["--small", "--device", "cuda", "--rounds", "2", "--cases", "images-full"]
    assert against.main([str(tmp_path / "tree"), *options]) == 1
    text = capsys.readouterr().out
    assert "before, check: the epoch is not the source's: 8 missing, 8 repeated" in text
    assert "slower, or without a number: images-full/gdsload" in text
    assert "before not in git" in text


def test_a_ref_is_checked_out_and_removed_again(tmp_path):
    repository = tmp_path / "repository"
    _commit(repository, "gdsload/__init__.py", "first")
    first = _git(repository, "rev-parse", "HEAD")
    _commit(repository, "gdsload/__init__.py", "second")
    with opened(first, repository) as (now, before):
        assert now.file.read_text() == "second"
        assert before.file.read_text() == "first"
        assert (now.commit[:7], before.commit) == (_git(repository, "rev-parse", "HEAD")[:7], first[:12])
        assert [path.name for path in before.packages.iterdir()] == ["gdsload"]
        repository.joinpath("gdsload/__init__.py").write_text("third")
        assert len(_git(repository, "worktree", "list").splitlines()) == 2
    assert len(_git(repository, "worktree", "list").splitlines()) == 1
    with opened(str(repository), repository) as (now, before):
        assert now.commit == before.commit == f"{_git(repository, 'rev-parse', 'HEAD')[:12]}-dirty"


def test_a_folder_without_the_package_is_no_tree(tmp_path):
    _commit(tmp_path / "repository", "gdsload/__init__.py", "")
    refused = pytest.raises(TreeError, match="a folder without gdsload/__init__.py")
    with refused, opened(str(tmp_path), tmp_path / "repository"):
        pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["HEAD", "--rounds", "1"], "at least 2, or there is no spread"),
        (["HEAD", "--cases", "rows-4k-full"], "--cases rows-4k-full: the cases are images-shuffled/gdsload, "),
        (["HEAD", "--json", "/no/such/folder/out.json"], "/no/such/folder is no folder"),
    ],
)
def test_misuse_is_told_from_a_slow_case(capsys, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        against.main(arguments)
    assert message in capsys.readouterr().err


def test_no_such_tree_is_misuse(capsys):
    assert against.main(["no-such-ref-or-folder", *TINY]) == 2
    assert "no-such-ref-or-folder is no folder, and no commit" in capsys.readouterr().err


def test_cases_are_named_by_case_and_contender():
    assert "thumbnails-shuffled/gdsload-block" in cpu_names()
    assert "rows-4k-full/gdsload-shards" in gpu_names()
    assert all(name.partition("/")[2].startswith("gdsload") for name in [*cpu_names(), *gpu_names()])


def test_workers_import_only_what_every_tree_has():
    """Of gdsload, when a module is imported: the package itself, and no module within it."""
    found = subprocess.run([sys.executable, "-c", IMPORTS], cwd=CHECKED_OUT, capture_output=True, text=True, check=True)
    files = [file for file in found.stdout.splitlines() if file != "None"]
    assert any(file.endswith("gpu/suite/trial.py") for file in files)
    for file in files:
        with open(file, encoding="utf-8") as source:
            statements = ast.parse(source.read()).body
        names = {alias.name for each in statements if isinstance(each, ast.Import) for alias in each.names}
        names |= {each.module for each in statements if isinstance(each, ast.ImportFrom)}
        assert not [name for name in names if name.startswith("gdsload.")], file


def _git(repository, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    found = subprocess.run(["git", "-C", repository, *who, *arguments], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def _commit(repository, path, text):
    file = repository / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    _git(repository, "init", "-q")
    _git(repository, "add", "-A")
    _git(repository, "commit", "-qm", "a")
