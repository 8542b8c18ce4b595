"""How command lines are read."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

import gdsload
from gdsload.conversion.option_types import source_parameters
from gdsload.conversion.recognise import KINDS, source_class
from gdsload.tools.cli import main, make_parser


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "x.npz", a=np.arange(6), b=np.arange(6.0), c=np.arange(12).reshape(6, 2))
    return tmp_path


def fields(out):
    return list(gdsload.ShardDataset(out).schema)


def wrong(capsys, *arguments):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def test_alone_it_prints_the_help(capsys):
    assert main([]) == 0
    alone = capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert capsys.readouterr().out == alone
    for command in make_parser()[1]:
        assert f"\n  {command} " in alone


@pytest.mark.parametrize("command", make_parser()[1])
def test_every_command_has_examples_that_its_parser_takes(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    examples = capsys.readouterr().out.partition("examples:\n")[2].splitlines()
    assert examples
    parser, commands = make_parser()
    for example in examples:
        words = example.partition("  ")[2].partition("   ")[0].partition(" > ")[0].split()
        assert words[0] == "gdsload"
        if "--help-source" not in words and "--size" not in words:
            parser.parse_args(words[1:])
        assert words[1] in commands


@pytest.mark.parametrize("command", make_parser()[1])
def test_every_option_says_what_it_does_and_its_default(command):
    for action in make_parser()[1][command]._actions:
        assert action.help
        if action.option_strings and action.nargs != 0 and action.default not in (None, [], "==SUPPRESS=="):
            shown = action.help % {"default": action.default, "prog": ""}
            default = action.default[0] if isinstance(action.default, list) else action.default
            number = f"{default:g}" if isinstance(default, float) else str(default)
            assert f"(default: {number})" in shown, action.option_strings


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--versio"], "error: gdsload has no option --versio\nhint: Did you mean --version? `gdsload --help` lists"),
        (["verify", ".", "--dep"], "error: gdsload verify has no option --dep\nhint: Did you mean --deep"),
        (["convert", "a", "b", "--kind", "image"], "error: --kind cannot be 'image'\nhint: Did you mean 'images'? It is one"),
        (["convert", "a", "b", "--siz", "3"], "Did you mean --size"),  # an option of a kind
        (["convert", "a", "b", "--bad", "3"], "`gdsload convert --help` lists its options, `--help-source KIND` those of a kind"),
        (["convert", "a", "b", "--types", "zip:str"], "error: --types: 'zip:str' is not NAME=VALUE,...\n"),
        (["convert"], "error: SOURCE, OUT are missing\n"),
        (["inspect", "a", "b"], "error: there is an argument too many: 'b'\n"),
        (["split", "a", "b", "--sizes", "x"], "error: --sizes: 'x' is no such list\n"),
        (["bench", "a", "--backends", "bounc"], "error: --backends: there is no backend 'bounc'. Did you mean 'bounce'?"),
        (["bench", "a", "--max-bytes", "many"], "error: --max-bytes: it is 'many', which is no size\n"),
        (["bench", "a", "--trials", "0"], "error: --trials: 0 is no whole number from 1\n"),
        (["bench", "a", "--seconds", "nan"], "hint: `gdsload bench --help` "),
        (["bench", "a", "--cold-only", "--hot-only"], "hint: `gdsload bench --help` "),
        (["inspect", "a", "--shards", "-1"], "error: --shards: -1 is no whole number from 0\n"),
        (["inspect", "a", "--count", "-1"], "error: --count: -1 is no whole number from 0\n"),
        (["doctor", "a", "--timeout", "-1"], "error: --timeout: -1 is no time\n"),
        (["demo", "--epochs", "two"], "error: --epochs cannot be 'two', which is no whole number\n"),
        (["convert", "--help-source", "image"], "there is no kind 'image'. Did you mean 'images'?"),
    ],
)  # fmt: skip
def test_what_was_meant_is_said(capsys, arguments, said):
    assert said in wrong(capsys, *arguments)


@pytest.mark.parametrize(
    "words", [["--fields", "a,c"], ["--fields", "a", "--fields", "c"], ["--fields=a,c"], ["--fields", '["a", "c"]']]
)
def test_lists_swallow_no_arguments(source, words):
    for number, order in enumerate(itertools.permutations([words, ["x.npz"], [f"out{len(words)}"]])):
        line = [word for one in order for word in one]
        if line.index("x.npz") < line.index(f"out{len(words)}"):
            out = f"{number}"
            assert main(["convert", *(out if word.startswith("out") else word for word in line), "--workers", "1"]) == 0
            assert fields(out) == ["a", "c"]


def test_several_words_behind_the_arguments_are_a_list_as_ever(source, capsys):
    assert main(["convert", "x.npz", "one", "--fields", "a", "c", "--ragged", "c", "--workers", "1"]) == 0
    assert fields("one") == ["a", "c"]
    assert main(["split", "one", "two", "three", "--sizes", "0.5", "0.5"]) == 0
    assert main(["reshard", "one", "four", "--no-pack-fields"]) == 0
    capsys.readouterr()
    assert "an argument too many: 'four'" in wrong(capsys, "convert", "x.npz", "--fields", "a", "c", "four")
    assert "an argument too many: 'c'" in wrong(capsys, "convert", "x.npz", "four", "--kind", "numpy", "c")


@pytest.mark.parametrize(
    ("line", "taken", "both"),
    [
        ("split --sizes .5 .5 x one two", "'.5' is taken for PATH", "--sizes .5,.5"),
        ("split x --sizes 2 3 one two", "'3' is taken for OUT", "--sizes 2,3"),
        ("bench --backends host bounce", "'bounce' is taken for PATH", "--backends host,bounce"),
        ("bench --backends host bounce x", "too many: 'x'. 'bounce' is taken for PATH", "--backends host,bounce"),
        ("convert --fields a c x out", "too many: 'out'. 'c' is taken for SOURCE", "--fields a,c"),
        ("convert x --fields a c out", "too many: 'out'. 'c' is taken for OUT", "--fields a,c"),
        ("convert --ragged a 'b c' x out", "too many: 'out'. 'b c' is taken for SOURCE", "--ragged 'a,b c'"),
    ],
)
def test_values_of_a_list_before_the_arguments_are_said_to_be_taken_for_these(capsys, line, taken, both):
    said = wrong(capsys, *shlex.split(line))
    assert re.search(rf"^error: .*{re.escape(taken)}$", said, re.MULTILINE)
    assert f"{both}, or stand after all arguments" in said


def test_what_is_no_value_of_a_list_is_an_argument(capsys):
    for line in ("split --sizes .5 nowhere one two", "bench --backends host nowhere", "convert --fields a nowhere out"):
        assert main(shlex.split(line)) in (1, 2)
        assert "error: nowhere: there is no" in capsys.readouterr().err
    assert "no option --bogus" in wrong(capsys, *shlex.split("convert --fields a x out --bogus"))


def test_options_of_a_kind_have_one_name(tmp_path, monkeypatch, capsys):
    """In Python, by --option, and as options of the command."""
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    from pyarrow import parquet

    monkeypatch.chdir(tmp_path)
    texts = pa.array([["a"], ["b", "c"]])
    parquet.write_table(pa.table({"a": texts, "b": [3, 4], "c": texts}), "t.parquet")
    gdsload.convert("t.parquet", "python", as_json=["c", "a"], workers=1)
    for number, words in enumerate(
        (["--as-json", "c,a"], ['--as-json=["c", "a"]'], ["--option", 'as_json=["c", "a"]'], ["--option", "as_json=c,a"], ["--kind", "parquet", "--as-json", "c,a"])
    ):  # fmt: skip
        assert main(["convert", *words, "t.parquet", str(number), "--workers", "1"]) == 0
        assert gdsload.ShardDataset(str(number)).digest == gdsload.ShardDataset("python").digest
    assert main(["convert", "t.parquet", "no", "--group", "3"]) == 2
    assert "error: kind 'parquet' has no option 'group'\nhint: Its options are --as-json, " in capsys.readouterr().err
    for flag in ("--follow-links", "--no-follow-links"):
        assert main(["convert", "t.parquet", flag[2:], flag, "--fields", "b", "--workers", "1"]) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_kinds_options_are_listed(kind, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["convert", "--help-source", kind])
    said = capsys.readouterr().out
    for name in source_parameters(source_class("", kind)[1]):
        [line] = [line for line in said.splitlines() if line.split()[:1] == [f"--{name.replace('_', '-')}"]]
        assert len(line) > 28, "what it does is said"
    assert all(len(line) <= 100 for line in said.splitlines())


def test_the_report_for_scripts(source, capsys):
    assert main(["convert", "x.npz", "out", "--json", "--workers", "1"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert (tree["ok"], tree["samples"], tree["shards"], tree["skipped"]) == (True, 6, 1, [])
    assert main(["convert", "x.npz", "more", "--json", "--dry-run"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert (tree["kind"], tree["samples"], list(tree["schema"])) == ("NumPy arrays", 6, ["a", "b", "c"])
    arguments = ["convert", "x.npz", "more", "--json", "--workers", "1", "--cast", "c=bool"]
    assert main(arguments) == 1
    said = capsys.readouterr()
    tree = json.loads(said.out)
    assert (tree["ok"], tree["error"]) == (False, "ConversionError")
    assert said.err.startswith("error: ")
    assert main(["split", "out", "a", "b", "--sizes", "2", "--json"]) == 0
    assert [one["samples"] for one in json.loads(capsys.readouterr().out)["datasets"]] == [2, 4]


def test_modules_of_the_current_folder_are_found(source, monkeypatch):
    """By the installed command, too, whose own folder is another one."""
    (source / "mine.py").write_text("def twice(sample):\n    return {'a': sample['a'] * 2}\n")
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    assert main(["convert", "x.npz", "out", "--map", "mine:twice", "--workers", "1"]) == 0
    del sys.modules["mine"]
    assert int(gdsload.ShardDataset("out")[5]["a"]) == 10


@pytest.mark.parametrize(
    "arguments", [["--help"], ["bench", "--help"], ["inspect", "x.npz"], ["convert", "ä.npz", "ö"]]
)
def test_output_that_takes_ascii_alone(source, arguments):
    np.savez("ä.npz", é=np.arange(3))
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.suppress(SystemExit):
        main(arguments)
    out.flush()
    err.flush()
    assert out.buffer.getvalue() + err.buffer.getvalue()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell, capsys):
    pytest.importorskip("shtab", reason="shtab writes completions")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("convert", "doctor", "--shard-bytes" if shell != "fish" else "shard-bytes"):
        assert word in script


def test_bash_completes(tmp_path, capsys):
    pytest.importorskip("shtab", reason="shtab writes completions")
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    ask = "source ./script; COMP_WORDS=({words}); COMP_CWORD={at}; _shtab_gdsload; echo ${{COMPREPLY[@]}}"
    for words, wanted in (("gdsload conv", "convert"), ("gdsload verify --de", "--deep")):
        command = ask.format(words=words, at=len(words.split()) - 1)
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [wanted]


def test_the_first_line_comes_before_torch_also_with_options_of_a_kind(tmp_path):
    """A line at once: `--size` is of a kind that is found without importing those that need torch."""
    asked = """
import sys
from gdsload.tools.cli.terminal import Bar
Bar.say = lambda bar, text: sys.exit(f"{text} {'torch' in sys.modules}")
from gdsload.tools.cli import main
main(["convert", ".", "out", "--size", "32", "--with-key"])
"""
    program = [sys.executable, "-B", "-c", asked]  # by -B a Python that has not imported torch already
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "looking at the source… False"


def test_completion_without_shtab(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert "hint: pip install 'gdsload[cli]'" in capsys.readouterr().err


def test_doctor_takes_no_empty_path(capsys):
    """As an unset variable of a shell is one."""
    assert main(["doctor", ""]) == 2
    assert "the path is empty" in capsys.readouterr().err
