"""tools/limits.py counts what may only become less, and names what has become more."""

from __future__ import annotations

import ast
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


def counted(root: Path) -> dict[str, limits.Count]:
    sources, failed = limits.read_sources(root)
    assert failed == []
    return {one.what: one for one in limits.counts(root, sources)}


def places(text: str, what: str) -> set[str]:
    source = limits.Source(Path("gdsload/a.py"), text, ast.parse(textwrap.dedent(text)))
    (found,) = (one for one in limits.counts(Path("nowhere"), [source]) if one.what == what)
    assert found.number == len(found.places)
    return set(found.places)


def test_each_count_has_a_maximum_and_each_maximum_a_count(tmp_path: Path):
    assert counted(tmp_path).keys() == limits.MOST.keys()


def test_lines_classes_keywords_and_bytes(tmp_path: Path):
    signature = "def __init__(self, dataset, /, batch_size=1, *, seed=0, **unneeded): ..."
    root = written(
        tmp_path,
        {
            "gdsload/errors.py": "class A: ...\n\n",
            "gdsload/loader/loader.py": f"class DataLoader:\n    {signature}\n\n    def f(self, a): ...\n",
            "gdsload/engine/gpu/b.py": "def f():\n    class C: ...\n",
            "gdsload/py.typed": "\n",
            "tests/loader/test_a.py": "class D: ...\n",
            "tests/data.txt": "no\nlines\n",
            "CHANGELOG.md": "×\n",
        },
    )
    numbers = {what: one.number for what, one in counted(root).items()}
    assert numbers == {
        "lines in gdsload": 8,
        "lines in tests": 1,
        "keywords of DataLoader": 3,
        "classes in loader, engine and backends": 2,
        "pools of threads": 0,
        "futures": 0,
        "bytes of CHANGELOG.md": 3,
    }


@pytest.mark.parametrize(
    "pool",
    [
        "class P:\n    def f(self): self.threads = [threading.Thread(target=g) for _ in range(3)]",
        "class W(Thread): ...\nclass P:\n    def f(self):\n        for _ in range(3): W(g).start()",
        "class W(threading.Thread): ...\nclass V(W): ...\ndef P():\n    while True: V()",
        "def P():\n    with ThreadPoolExecutor(3) as threads: ...",
        "class P:\n    def f(self): return futures.ProcessPoolExecutor()",
        "class P(Executor): ...",
        "class P(concurrent.futures.ThreadPoolExecutor): ...",
    ],
)
def test_what_starts_several_threads_is_a_pool(pool: str):
    assert places(pool, "pools of threads") == {"P"}


@pytest.mark.parametrize(
    "other",
    [
        "class C:\n    def f(self): self.thread = threading.Thread(target=g)",
        "class W(Thread): ...\ndef f():\n    for thread in threads: thread.start()",
        "def f(executor: Executor) -> Future:\n    return executor.submit(g)",
    ],
)
def test_one_thread_or_a_pool_of_others_is_none(other: str):
    assert places(other, "pools of threads") == set()


WAITS = "def wait(self): ..."


@pytest.mark.parametrize(
    ("futures", "found"),
    [
        (f"class F:\n    gate = threading.Lock()\n    {WAITS}", {"F"}),
        ("class F:\n    def f(self): self.done = SimpleQueue[int]()\n    def result(self): ...", {"F"}),
        (f"class W(Thread): ...\nclass F:\n    def f(self): self.thread = W()\n    {WAITS}", {"F"}),
        (f"class F:\n    gate = Lock()\n    {WAITS}\nclass G(F): ...", {"F", "G"}),
        (f"class F:\n    def f(self): self.event = torch.cuda.Event()\n    {WAITS}", set()),
        (f"class Both:\n    def __init__(self, *parts): self.parts = parts\n    {WAITS}", set()),
        ("class Cache:\n    lock = threading.Lock()\n    def get(self): ...", set()),
    ],
)
def test_what_a_thread_waits_for_is_a_future(futures: str, found: set[str]):
    assert places(futures, "futures") == found


def test_conformance_suites_may_start_threads(tmp_path: Path):
    text = f"class F:\n    gate = Lock()\n    {WAITS}\n    def f(self): ThreadPoolExecutor()\n"
    found = counted(written(tmp_path, {"gdsload/testing/a.py": text, "gdsload/system/b.py": text}))
    assert (found["pools of threads"].number, found["futures"].number) == (1, 1)


def test_more_than_the_maximum_is_a_violation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = written(tmp_path, {"gdsload/a.py": "class P(Executor): ...\n", "CHANGELOG.md": "four"})
    for what, found in counted(root).items():
        monkeypatch.setitem(limits.MOST, what, found.number)
    assert limits.violations(root) == []
    monkeypatch.setitem(limits.MOST, "pools of threads", 0)
    monkeypatch.setitem(limits.MOST, "bytes of CHANGELOG.md", 3)
    assert list(map(str, limits.violations(root))) == [
        "CHANGELOG.md:1: 4 bytes of CHANGELOG.md, at most 3 are allowed",
        "gdsload:1: 1 pools of threads, at most 0 are allowed: P",
    ]


def test_the_command_prints_each_count_beside_its_maximum(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    root = written(tmp_path, {"gdsload/a.py": "class P(Executor): ...\n"})
    assert limits.main(["--counts", str(root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(limits.MOST)
    most = limits.MOST["lines in gdsload"]
    assert lines[0] == f"1 lines in gdsload, at most {most} are allowed"
