"""The tree of errors: what they say, and that they cross process boundaries whole."""

import copy
import pickle
import re

import pytest

import gdsload.errors as module
from gdsload.errors import (
    FormatError,
    GdsloadError,
    OptionError,
    Problem,
    ReadError,
    Skipped,
)

CLASSES = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, GdsloadError)]
PLAIN = [kind for kind in CLASSES if not issubclass(kind, FormatError)]
FORMAT = [kind for kind in CLASSES if issubclass(kind, FormatError)]


def drawn(kind, indent="    "):
    """The lines of the tree below an error, without what they say of each."""
    below = [one for one in CLASSES if one.__bases__[0] is kind]
    for one in below:
        branch, further = ("└── ", "    ") if one is below[-1] else ("├── ", "│   ")
        mixed_in = [f" ({base.__name__})" for base in one.__bases__[1:]]
        yield indent + branch + one.__name__ + "".join(mixed_in)
        yield from drawn(one, indent + further)


def test_docstring_draws_the_real_tree():
    lines = [re.match(r"[^\w]+\w+( \(\w+\))?", line)[0] for line in module.__doc__.splitlines() if "── " in line]
    assert lines == list(drawn(GdsloadError))


def test_a_file_is_named_once_and_all_else_stays():
    error = FormatError("bad", cause="why", remedy="Mend it.", problems=[Problem("worse")])
    assert error.within("a") is error
    assert str(error.within("b")) == "a: bad: why. Mend it.\n  - worse"


def test_all_lists_what_is_public():
    assert sorted(module.__all__) == sorted(kind.__name__ for kind in [*CLASSES, Problem, Skipped])


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_error_has_a_docstring_of_its_own(kind):
    assert kind.__doc__ != kind.__bases__[0].__doc__


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_error_says_where_and_what_to_do(kind):
    error = kind("it broke", file="a.safetensors", field="x", offset=4096, remedy="Mend it.")
    assert str(error) == "a.safetensors, field 'x', byte 4096: it broke. Mend it."
    assert str(kind("it broke")) == "it broke"
    assert str(kind("it broke", field="x")) == "field 'x': it broke"
    assert error.args == ("it broke",)


def test_error_says_of_which_option_it_is_and_what_led_to_it():
    error = OptionError("is 0", option="workers", file="a", cause="it is too few", remedy="Pass a larger `workers`.")
    for one in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert str(one) == "a: workers is 0: it is too few. Pass a larger `workers`."
        assert (one.option, one.message, one.cause) == ("workers", "workers is 0", "it is too few")


@pytest.mark.parametrize("kind", FORMAT, ids=lambda kind: kind.__name__)
def test_format_error_lists_its_problems(kind):
    error = kind("it broke", file="a", remedy="Mend it.", problems=[Problem("bad", "a", 8, "x"), Problem("worse")])
    assert str(error).splitlines() == [
        "a: it broke. Mend it.",
        "  - a, field 'x', byte 8: bad",
        "  - worse",
    ]
    assert str(kind("it broke")) == "it broke"


def test_long_lists_of_problems_are_shortened():
    error = FormatError("it broke", problems=[Problem(f"problem {number}") for number in range(25)])
    lines = str(error).splitlines()
    assert (len(lines), lines[-1]) == (22, "  - and 5 more in .problems")
    assert len(error.problems) == 25


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_error_survives_pickle(kind, protocol):
    error = kind("it broke", file="a", field="x", offset=0, remedy="Mend it.")
    error.add_note("a note")
    read = pickle.loads(pickle.dumps(error, protocol))
    assert type(read) is kind
    assert (str(error), error.args, error.__dict__) == (str(read), read.args, read.__dict__)
    assert (
        read.file,
        read.field,
        read.offset,
        read.remedy,
        read.__notes__,
    ) == ("a", "x", 0, "Mend it.", ["a note"])


def test_the_systems_number_survives_pickle():
    error = ReadError("it cannot be read", file="f")
    error.errno = 5
    assert (pickle.loads(pickle.dumps(error)).errno, copy.copy(error).errno) == (5, 5)
    assert pickle.loads(pickle.dumps(ReadError("it cannot be read"))).errno is None


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", FORMAT, ids=lambda kind: kind.__name__)
def test_format_error_survives_pickle(kind, protocol):
    problems = [Problem("bad", "a", 8, "x", (2, 5)), Problem("worse")]
    error = kind("it broke", file="a", remedy="Mend it.", problems=problems)
    read = pickle.loads(pickle.dumps(error, protocol))
    assert type(read) is kind
    assert tuple(problems) == read.problems
    assert (str(error), error.__dict__) == (str(read), read.__dict__)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (Problem("bad"), "bad"),
        (Problem("bad", "a"), "a: bad"),
        (Problem("bad", "a", 0), "a, byte 0: bad"),
        (Problem("bad", None, None, "x"), "field 'x': bad"),
        (Problem("bad", "a", 8, "x", (2, 5)), "a, field 'x', byte 8: bad (samples 2 to 4)"),
        (Problem("bad", field="a\nb\x1b[31m"), r"field 'a\nb\x1b[31m': bad"),
        (Problem("bad", field="\ud800"), r"field '\ud800': bad"),
        (Problem("bad", field="x" * 10**6), f"field {'x' * 200!r}…: bad"),
    ],
)
def test_problem_says_where(problem, expected):
    assert expected == str(problem)


def test_spoiled_samples_of_all_problems_are_joined():
    ranges = [(7, 9), None, (0, 2), (2, 3), (8, 8), (12, 13)]
    error = FormatError("bad", problems=[Problem("bad", samples=one) for one in ranges])
    assert error.samples == ((0, 3), (7, 9), (12, 13))
    assert FormatError("bad").samples == ()


def test_a_problem_names_its_bytes():
    assert str(Problem("bad", "a", 8, nbytes=3)) == "a, bytes 8 to 10: bad"
    assert str(Problem("bad", "a", 8, nbytes=1)) == "a, byte 8: bad"
