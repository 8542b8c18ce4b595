"""How command lines are read."""

import contextlib
import io
import itertools
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


def ended(capsys, *arguments, code=0):
    with pytest.raises(SystemExit, match=str(code)):
        main(arguments)
    return capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "same_as"),
    [("help", "--help"), ("help verify", "verify --help"), ("help help", "--help"), ("version", "--version"),
     ("-V", "--version")],
)  # fmt: skip
def test_help_and_version_can_be_asked_for_in_words(capsys, words, same_as):
    assert ended(capsys, *words.split()).out == ended(capsys, *same_as.split()).out


@pytest.mark.parametrize("command", ["", *make_parser()[1]])
@pytest.mark.parametrize("columns", [40, 48, 60, 80])
def test_help_fits_the_terminal_and_its_explanations_are_no_columns_of_words(capsys, monkeypatch, command, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = ended(capsys, "help", *command.split()).out.splitlines()
    assert max(len(line) for line in lines if "/completions/" not in line) <= columns  # a path is not broken
    alone = [line for line in lines if line.startswith(" " * (columns // 2)) and " " not in line.strip()]
    assert len(alone) < len(lines) / 8


def wrong(capsys, *arguments):
    said = ended(capsys, *arguments, code=2)
    assert said.out == ""
    return said.err


@pytest.mark.parametrize("command", make_parser()[1])
def test_every_command_has_examples_that_its_parser_takes(command, capsys):
    examples = ended(capsys, command, "--help").out.partition("examples:\n")[2].splitlines()
    assert examples
    parser, commands = make_parser()
    for example in examples:
        words = example.partition("  ")[2].partition("   ")[0].partition(" > ")[0].split()
        assert words[:1] == ["gdsload"]
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
        (["help", "verfy"], "there is no command 'verfy'\nhint: Did you mean 'verify'?"),
        (["--versio"], "error: gdsload has no option --versio\nhint: Did you mean --version? `gdsload --help` lists"),
        (["verify", ".", "--dep"], "error: gdsload verify has no option --dep\nhint: Did you mean --deep"),
        (["convert", "a", "b", "--siz", "3"], "Did you mean --size"),  # an option of a kind
        (["convert", "a", "b", "--types", "zip:str"], "error: --types: 'zip:str' is not NAME=VALUE,...\n"),
        (["convert", "a", "b", "--types", "zip=str,id"], "error: --types: 'zip=str,id' is not NAME=VALUE,...\n"),
        (["convert", "a", "b", "--cast", "x"], "error: --cast: 'x' is not NAME=VALUE,...\n"),
        (["convert", "a", "b", "--cast", "[1]"], "error: --cast: '[1]' is not NAME=VALUE,...\n"),
        (["inspect", "a", "--shards", "-1"], "error: --shards: -1 is no whole number from 0\n"),
        (["doctor", "a", "--timeout", "-1"], "error: --timeout: -1 is no time\n"),
        (["bench", "a", "--expect", "gds=maybe"], "'gds=maybe' is not a rule; write gds=no|yes|unavailable|"),
        (["bench", "a", "--expect", "cold>10"], "--expect: 'cold>10' is not a rule"),
        (["bench", "a", "--budget", "soon"], "--budget: 'soon' is not a time; write 2min, 90s or 1h"),
        (["bench", "a", "--budget", "0"], "--budget: '0' is not a time"),
        (["bench", "a", "--row", "big"], "--row: 'big' is not a size; write 8GiB, 150KB or a number of bytes"),
        (["convert", "--help-source", "image"], "there is no kind 'image'. Did you mean 'images'?"),
    ],
)  # fmt: skip
def test_what_was_meant_is_said(capsys, arguments, said):
    assert said in wrong(capsys, *arguments)


@pytest.mark.parametrize(
    "words", [["--fields", "a,c"], ["--fields", "a", "--fields", "c"], ["--fields=a,c"], ["--fields", '["a", "c"]']]
)
def test_lists_swallow_no_arguments(words):
    parser, _ = make_parser()
    for order in itertools.permutations([words, ["x.npz"], ["out"]]):
        line = [word for one in order for word in one]
        if line.index("x.npz") < line.index("out"):
            chosen = parser.parse_args(["convert", *line])
            assert (chosen.source, chosen.out, chosen.fields) == ("x.npz", "out", ["a", "c"])


def test_a_list_replaces_its_default_and_is_made_of_words(capsys):
    parse = make_parser()[0].parse_args
    assert parse(["split", "a", "b", "--sizes", ".5,3"]).sizes == [0.5, 3]
    assert parse(["reshard", "a", "b", "--no-pack-fields"]).pack_fields == []
    assert "an argument too many: 'c'" in wrong(capsys, "convert", "x.npz", "out", "--fields", "a", "c")


def test_options_of_a_kind_have_one_name(tmp_path, monkeypatch, cli):
    """In Python, and as options of the command."""
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    from pyarrow import parquet

    monkeypatch.chdir(tmp_path)
    texts = pa.array([["a"], ["b", "c"]])
    parquet.write_table(pa.table({"a": texts, "b": [3, 4], "c": texts}), "t.parquet")
    gdsload.convert("t.parquet", "python", as_json=["c", "a"], workers=1)
    ways = (["--as-json", "c,a"], ['--as-json=["c", "a"]'], ["--kind", "parquet", "--as-json", "c,a"])
    for number, words in enumerate(ways):
        cli("convert", *words, "t.parquet", number, "--workers", "1")
        assert gdsload.ShardDataset(str(number)).digest == gdsload.ShardDataset("python").digest
    said = cli("convert", "t.parquet", "no", "--group", "3", code=2).err
    assert "error: kind 'parquet' has no option 'group'\nhint: Its options are --as-json, " in said
    for flag in ("--follow-links", "--no-follow-links"):
        cli("convert", "t.parquet", flag[2:], flag, "--fields", "b", "--workers", "1")


@pytest.mark.parametrize("kind", KINDS)
def test_a_kinds_options_are_listed(kind, capsys):
    said = ended(capsys, "convert", "--help-source", kind).out
    for name in source_parameters(source_class("", kind)[1]):
        [line] = [line for line in said.splitlines() if line.split()[:1] == [f"--{name.replace('_', '-')}"]]
        assert len(line) > 28, "what it does is said"
    assert all(len(line) <= 100 for line in said.splitlines())


def test_the_report_for_scripts(source, cli):
    tree = cli("convert", "x.npz", "out", "--json", "--workers", "1").tree
    assert (tree["ok"], tree["samples"], tree["shards"], tree["skipped"]) == (True, 6, 1, [])
    tree = cli("convert", "x.npz", "more", "--json", "--dry-run").tree
    assert (tree["kind"], tree["samples"], list(tree["schema"])) == ("NumPy arrays", 6, ["a", "b", "c"])
    said = cli("convert", "x.npz", "more", "--json", "--workers", "1", "--cast", "c=bool", code=1)
    assert (said.tree["ok"], said.tree["error"]) == (False, "ConversionError")
    assert said.err.startswith("error: ")
    parts = cli("split", "out", "a", "b", "--sizes", "2", "--json").tree["datasets"]
    assert [one["samples"] for one in parts] == [2, 4]


def test_modules_of_the_current_folder_are_found(source, monkeypatch, cli):
    """By the installed command, too, whose own folder is another one."""
    (source / "mine.py").write_text("def twice(sample):\n    return {'a': sample['a'] * 2}\n")
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    cli("convert", "x.npz", "out", "--map", "mine:twice", "--workers", "1")
    del sys.modules["mine"]
    assert int(gdsload.ShardDataset("out")[5]["a"]) == 10


@pytest.mark.parametrize(
    "arguments",
    [["bench", "--help"], ["inspect", "x.npz"], ["convert", "ä.npz", "ö"], ["doctor", "ä.npz", "--device", "cpu"]],
)
def test_output_that_takes_ascii_alone(source, arguments):
    np.savez("ä.npz", é=np.arange(3))
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.suppress(SystemExit):
        main(arguments)
    out.flush()
    err.flush()
    assert out.buffer.getvalue() + err.buffer.getvalue()


def test_bash_completes(tmp_path, cli):
    pytest.importorskip("shtab", reason="shtab writes completions")
    (tmp_path / "script").write_text(cli("completion", "bash").out)
    ask = "source ./script; COMP_WORDS=({words}); COMP_CWORD={at}; _shtab_gdsload; echo ${{COMPREPLY[@]}}"
    for words, wanted in (("gdsload conv", "convert"), ("gdsload verify --de", "--deep")):
        command = ask.format(words=words, at=len(words.split()) - 1)
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [wanted]


FIRST_LINE = """
import sys
from gdsload.tools.cli.terminal import Bar
Bar.say = lambda bar, text: sys.exit((text, "torch" in sys.modules) != ("starting…", False))
from gdsload.tools.cli import main
main(["convert", ".", "out", "--size", "32", "--with-key"])
"""
"""A line at once: `--size` is of a kind that is found without importing those that need torch."""
WITHOUT_TORCH = """
import sys
from gdsload.tools.cli import main
assert [main([*words.split(), "d"]) for words in ("inspect", "inspect --json", "verify --deep")] == [0, 0, 0]
sys.exit("torch" in sys.modules)
"""


@pytest.mark.parametrize("program", [FIRST_LINE, WITHOUT_TORCH], ids=["a first line", "inspect and verify"])
def test_commands_start_without_torch(tmp_path, program):
    """Which takes more than a second."""
    with gdsload.ShardWriter(tmp_path / "d") as writer:
        writer.write({"x": np.ones(3, np.float32), "text": "a"})
    command = [sys.executable, "-B", "-c", program]  # by -B a Python that has not imported torch already
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_completion_without_shtab(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert "hint: pip install 'gdsload[cli]'" in cli("completion", "bash", code=2).err


def test_doctor_takes_no_empty_path(cli):
    """As an unset variable of a shell is one."""
    assert "the path is empty" in cli("doctor", "", code=2).err
