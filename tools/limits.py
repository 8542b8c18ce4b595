"""Hold the house's maxima: maxima, not averages, because an average hides the one file that nobody can read.

    python tools/limits.py [ROOT]             # every violation as ``path:line: message``; exit code 1 if there is one
    python tools/limits.py --counts [ROOT]    # each count of what may only become less, beside its maximum

The rules:

- a file has at most 400 lines, or 600 in tests;
- a function has at most 50 lines from its ``def`` on, its docstring not counted, and at most 7 parameters, not counting
  ``self``, ``cls``, ``*args`` and ``**kwargs``. The signatures in `LONG_SIGNATURES` count for neither, for the reason
  given there;
- no module is named after nothing in particular (``utils`` and the like);
- a docstring of gdsload says what the thing is or does, and does not begin with "What", "Who" or "Whether";
- the modules of gdsload do not import each other in a circle. Imports inside functions and under ``TYPE_CHECKING`` do
  not count: they cannot fail at import;
- no count is above its maximum in `MOST`. That guards against regrowth, and is no reason for dense lines or fewer
  comments. Lines are those of Python files. A pool is a class or function of gdsload that starts several threads, in a
  loop or comprehension, or makes one of the standard library's executors, or derives from one. A future is a class of
  gdsload with a method ``wait`` or ``result`` that makes a lock, an event, a queue or a thread to wait on, or that
  derives from such a class. gdsload.testing, which starts threads to find races, is left out of both.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "gdsload"
MAX_FILE_LINES = {PACKAGE: 400, "benchmarks": 400, "examples": 400, "tools": 400, "tests": 600}
MAX_FUNCTION_LINES = 50
MAX_PARAMETERS = 7
LONG_SIGNATURES = {
    ("gdsload/loader/loader.py", "DataLoader.__init__"): "each option of the loader is declared once, in its signature",
}
"""Functions that may have any number of parameters, by file and qualified name, each with its reason."""
QUESTIONS = ("What ", "Who ", "Whether ")
VAGUE_NAMES = frozenset({"common", "helper", "helpers", "misc", "util", "utils"})
MOST = {
    "lines in gdsload": 53_000,
    "lines in tests": 55_300,
    "keywords of DataLoader": 28,
    "classes in loader, engine, backends and kernels": 151,
    "classes in the gather of a cold block shuffle": 28,
    "pools of threads": 1,
    "futures": 1,
    "bytes of CHANGELOG.md": 6_000,
}
"""The counts of today, lines rounded up to hundreds. Lower a maximum when its count falls. Before one is raised, what
is new has to be worth more than anything that could go for it; the commit says what it is. The changelog has one page
until the first release."""
ROOMS = ("loader", "engine", "backends", "kernels")
GATHER = frozenset(
    Path(PACKAGE, f"{name}.py")
    for name in (
        "engine/landed",
        "engine/lane_windows",
        "engine/loaded_rows",
        "engine/window_source",
        "kernels/block_ids",
        "kernels/gather_positions",
    )
)
"""The modules that gather the samples of a cold block shuffle on a GPU. Classes that they define or import count."""
EXECUTORS = frozenset({"Executor", "ProcessPoolExecutor", "ThreadPoolExecutor"})
WAITED_FOR = frozenset({"Barrier", "Condition", "Event", "Lock", "Queue", "RLock", "Semaphore", "SimpleQueue"})

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.ClassDef | Function
Loop = ast.For | ast.While | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    """One breach of one rule."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass(frozen=True, slots=True)
class Source:
    """One parsed Python file; `path` is relative to the root."""

    path: Path
    text: str
    tree: ast.Module


@dataclass(frozen=True, slots=True)
class Count:
    """How much there is of something, and where if it has places."""

    what: str
    path: str
    number: int
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        places = f": {', '.join(self.places)}" if self.places else ""
        return f"{self.number} {self.what}, at most {MOST[self.what]} are allowed{places}"


def violations(root: Path) -> list[Violation]:
    """Every violation under `root`, in order of path and line."""
    sources, found = read_sources(root)
    for source in sources:
        found += [*_check_file(source), *_check_name(source), *_check_docstrings(source), *_check_functions(source)]
    found += _check_cycles([source for source in sources if source.path.parts[0] == PACKAGE])
    found += [Violation(one.path, 1, str(one)) for one in counts(root, sources) if one.number > MOST[one.what]]
    return sorted(found)


def read_sources(root: Path) -> tuple[list[Source], list[Violation]]:
    """All Python files that have limits, and a violation for each that cannot be parsed."""
    found: list[Violation] = []
    sources: list[Source] = []
    for folder in MAX_FILE_LINES:
        for file in sorted((root / folder).rglob("*.py")):
            path = file.relative_to(root)
            text = file.read_text(encoding="utf-8")
            try:
                sources.append(Source(path, text, ast.parse(text)))
            except SyntaxError as error:
                found.append(Violation(str(path), error.lineno or 1, f"cannot be parsed: {error.msg}"))
    return sources, found


def _check_file(source: Source) -> Iterator[Violation]:
    lines, limit = len(source.text.splitlines()), MAX_FILE_LINES[source.path.parts[0]]
    if lines > limit:
        yield Violation(str(source.path), limit + 1, f"the file has {lines} lines, at most {limit} are allowed")


def _check_name(source: Source) -> Iterator[Violation]:
    name = source.path.parent.name if source.path.name == "__init__.py" else source.path.stem
    if name.strip("_") in VAGUE_NAMES:
        yield Violation(str(source.path), 1, f"{name} says nothing: name the module after what it does")


def _check_docstrings(source: Source) -> Iterator[Violation]:
    for node in ast.walk(source.tree) if source.path.parts[0] == PACKAGE else ():
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str) and text.startswith(QUESTIONS):
                message = f"the docstring begins with {text.split()[0]}: say what it is or does"
                yield Violation(str(source.path), node.lineno, message)


def _check_functions(source: Source) -> Iterator[Violation]:
    methods = {
        id(method): f"{node.name}.{method.name}"
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, Function)
    }
    for node in ast.walk(source.tree):
        if not isinstance(node, Function):
            continue
        exempt = (source.path.as_posix(), methods.get(id(node), node.name)) in LONG_SIGNATURES
        lines = _count_lines(node) - (node.body[0].lineno - node.lineno if exempt else 0)
        if lines > MAX_FUNCTION_LINES:
            message = f"{node.name} has {lines} lines, at most {MAX_FUNCTION_LINES} are allowed"
            yield Violation(str(source.path), node.lineno, message)
        parameters = _count_parameters(node, is_method=id(node) in methods)
        if parameters > MAX_PARAMETERS and not exempt:
            message = f"{node.name} has {parameters} parameters, at most {MAX_PARAMETERS} are allowed"
            yield Violation(str(source.path), node.lineno, message)


def _count_lines(function: Function) -> int:
    lines = _last_line(function) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is not None:
        docstring = function.body[0]
        lines -= _last_line(docstring) - docstring.lineno + 1
    return lines


def _last_line(node: ast.stmt) -> int:
    return node.lineno if node.end_lineno is None else node.end_lineno


def _count_parameters(function: Function, *, is_method: bool) -> int:
    positional = [*function.args.posonlyargs, *function.args.args]
    if is_method and positional and positional[0].arg in {"self", "cls"}:
        positional = positional[1:]
    return len(positional) + len(function.args.kwonlyargs)


def _check_cycles(sources: list[Source]) -> Iterator[Violation]:
    """Name one circle for every import that closes one."""
    modules = {_module_name(source.path): source for source in sources}
    graph = {name: dict(_imports(name, source, modules)) for name, source in modules.items()}
    finished: set[str] = set()
    for start in graph:
        for circle in _circles(start, graph, finished, trail=[]):
            first, second = circle[0], circle[1]
            message = f"import cycle: {' -> '.join(circle)}"
            yield Violation(str(modules[first].path), graph[first][second], message)


def _circles(
    module: str, graph: Mapping[str, Mapping[str, int]], finished: set[str], trail: list[str]
) -> Iterator[list[str]]:
    """Walk depth first; an import of a module that is still on the trail closes a circle."""
    if module in trail:
        yield [*trail[trail.index(module) :], module]
    elif module not in finished:
        for imported in graph[module]:
            yield from _circles(imported, graph, finished, [*trail, module])
        finished.add(module)


def _module_name(path: Path) -> str:
    parts = path.parent.parts if path.name == "__init__.py" else (*path.parent.parts, path.stem)
    return ".".join(parts)


def _imports(name: str, source: Source, modules: Mapping[str, Source]) -> Iterator[tuple[str, int]]:
    """Yield the modules that running `name` imports, with the line.

    That Python imports the packages around a module first is left out: it would make a circle of every package whose
    ``__init__`` imports its own modules.
    """
    package = name if source.path.name == "__init__.py" else name.rpartition(".")[0]
    for node in _statements_run_at_import(source.tree.body):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute_base(node, package)
            names = [f"{base}.{alias.name}" for alias in node.names]
            targets = [target if target in modules else base for target in names]
        else:
            continue
        yield from ((target, node.lineno) for target in targets if target in modules and target != name)


def _absolute_base(node: ast.ImportFrom, package: str) -> str:
    if node.level == 0:
        return node.module or ""
    base = package.split(".")
    base = base[: len(base) - (node.level - 1)]
    return ".".join([*base, node.module] if node.module else base)


def _statements_run_at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, Function):
            continue
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            yield from _statements_run_at_import(node.orelse)
            continue
        for block in ("body", "orelse", "finalbody"):
            yield from _statements_run_at_import(getattr(node, block, []))
        for clause in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
            yield from _statements_run_at_import(clause.body)


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def counts(root: Path, sources: list[Source]) -> list[Count]:
    """What `MOST` has a maximum of."""
    package = [source for source in sources if source.path.parts[0] == PACKAGE]
    tests = [source for source in sources if source.path.parts[0] == "tests"]
    rooms = [source for source in package if source.path.parts[1] in ROOMS]
    threaded = [source for source in package if source.path.parts[1] != "testing"]
    classes = _classes(threaded)
    pools, futures = tuple(_pools(threaded, classes)), tuple(_futures(classes))
    changelog = root / "CHANGELOG.md"
    return [
        Count("lines in gdsload", PACKAGE, _lines(package)),
        Count("lines in tests", "tests", _lines(tests)),
        Count("keywords of DataLoader", PACKAGE, sum(map(_keywords, rooms))),
        Count("classes in loader, engine, backends and kernels", PACKAGE, len(_classes(rooms))),
        Count("classes in the gather of a cold block shuffle", PACKAGE, len(_gathering(package))),
        Count("pools of threads", PACKAGE, len(pools), pools),
        Count("futures", PACKAGE, len(futures), futures),
        Count("bytes of CHANGELOG.md", "CHANGELOG.md", changelog.stat().st_size if changelog.is_file() else 0),
    ]


def _lines(sources: list[Source]) -> int:
    return sum(len(source.text.splitlines()) for source in sources)


def _keywords(source: Source) -> int:
    """The parameters of `DataLoader`, if it is in this file."""
    return sum(
        _count_parameters(method, is_method=True)
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and node.name == "DataLoader"
        for method in node.body
        if isinstance(method, Function) and method.name == "__init__"
    )


def _classes(sources: list[Source]) -> list[ast.ClassDef]:
    return [node for source in sources for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)]


def _gathering(package: list[Source]) -> set[str]:
    """The names of the package's classes that the modules of `GATHER` define or import."""
    sources = [source for source in package if source.path in GATHER]
    imported = {
        alias.name
        for source in sources
        for node in source.tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    known = {node.name for node in _classes(package)}
    return (imported & known) | {node.name for node in _classes(sources)}


def _pools(sources: list[Source], classes: list[ast.ClassDef]) -> Iterator[str]:
    threads, own_executors = _derived(classes, {"Thread"}), _derived(classes, EXECUTORS)
    for scope in (node for source in sources for node in source.tree.body if isinstance(node, Scope)):
        looped = {name for node in ast.walk(scope) if isinstance(node, Loop) for name in _called(node)}
        if scope.name in own_executors or looped & threads or _called(scope) & EXECUTORS:
            yield scope.name


def _futures(classes: list[ast.ClassDef]) -> Iterator[str]:
    waited_for = WAITED_FOR | _derived(classes, {"Thread"})
    waiting = {
        node.name
        for node in classes
        if any(isinstance(method, Function) and method.name in {"wait", "result"} for method in node.body)
        and _called(node) & waited_for
    }
    futures = _derived(classes, waiting)
    yield from (node.name for node in classes if node.name in futures)


def _derived(classes: list[ast.ClassDef], names: Iterable[str]) -> set[str]:
    """These names, and those of the classes that derive from them."""
    found = set(names)
    while more := {node.name for node in classes if found & set(map(_name, node.bases))} - found:
        found |= more
    return found


def _called(node: ast.AST) -> set[str]:
    """The names of what is called in a piece of code, but for torch's own."""
    functions = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
    return {_name(function) for function in functions if not ast.unparse(function).startswith("torch.")}


def _name(node: ast.expr) -> str:
    """The last name of ``a.b.C[D]``: C."""
    node = node.value if isinstance(node, ast.Subscript) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def main(arguments: list[str]) -> int:
    """Print the violations under the folder named, by default this repository, or the counts; 1 for a violation."""
    folders = [argument for argument in arguments if argument != "--counts"]
    root = Path(folders[0]) if folders else Path(__file__).resolve().parent.parent
    if not (root / PACKAGE).is_dir():
        print(f"{root} has no folder {PACKAGE}: name the root of the repository")
        return 1
    if "--counts" in arguments:
        for one in counts(root, read_sources(root)[0]):
            print(one)
        return 0
    found = violations(root)
    for violation in found:
        print(violation)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
