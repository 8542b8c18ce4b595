"""`gdsload bench`: its options, what it prints and writes, and its exit codes. Most measurements are made up."""

import html
import shlex
import subprocess
import sys

import numpy as np
import pytest

import gdsload
from gdsload.tools import bench
from gdsload.tools.bench import rows
from tests.tools.bench.records import GPU_MACHINE, made_record
from tests.tools.cli.terminals import Terminal


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "shards"
    with gdsload.ShardWriter(path, {"x": gdsload.Field("uint8", (4096,))}) as writer:
        writer.write_batch({"x": np.zeros((64, 4096), np.uint8)})
    return path


@pytest.fixture
def measured(monkeypatch):
    """The plans that were measured; the record of each is made up, after the changes in the attribute."""

    class Plans(list):
        changes = ()

    plans = Plans()

    def run_bench(plan, *, progress):
        progress("cold, turn 1 of 9: gds", 0, 9)
        plans.append(plan)
        return made_record(*plans.changes)

    monkeypatch.setattr(bench, "run_bench", run_bench)
    return plans


@pytest.fixture
def command(cli):
    return lambda *words, code=0: cli("bench", *words, "--device", "cpu", code=code)


def test_a_measurement_from_begin_to_end(dataset, command, tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "TorchRow", rows.ReadRow)  # its workers take seconds to begin
    page = tmp_path / "page.html"
    words = ["--turns", 1, "--seconds", 0.05, "--workers", 1, "--hot-only", "--json", "--html", page]
    said = command(dataset, *words)
    record = said.tree
    assert said.err.startswith("plan       1 turn")
    assert record["schema"] == 1
    assert record["command"] == shlex.join(["gdsload", "bench", *map(str, [dataset, *words]), "--device", "cpu"])
    assert record["verdict"]["gds"] == "unknown"
    assert {row["kind"] for row in record["hot"]["rows"]} == {"gdsload", "control", "read"}
    assert html.escape(record["verdict"]["sentence"].partition("`")[0]) in page.read_text(encoding="utf-8")


def test_the_record_with_its_verdict_is_printed_in_each_form(dataset, command, measured, tmp_path):
    assert "VERDICT    GDS does not help you here." in command(dataset).out
    found = command(dataset, "--json").tree
    assert found["verdict"]["case"] == "fits memory"
    assert found.items() >= {name: GPU_MACHINE[name] for name in ("schema", "machine", "cold", "hot")}.items()
    command(dataset, "--html", tmp_path / "x.html")
    assert (tmp_path / "x.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("--budget 90s", {"budget_s": 90}), ("--budget 1h", {"budget_s": 3600}), ("", {"budget_s": 120, "turns": 9}),
        ("--turns 25 --seconds 2", {"turns": 25, "turn_s": 2, "budget_s": None}), ("--step-ms 38", {"step_ms": 38}),
        ("--cold-only", {"cold": True, "hot": False}), ("--hot-only", {"cold": False, "hot": True}),
        ("--batch-size 7 --workers 3", {"batch_size": 7, "workers": 3}), ("--shuffle none", {"shuffle": False}), ("--device cpu", {"shuffle": True}),
        ("--shuffle block", {"shuffle": "block"}), ("--backends auto,host", {"backends": ("auto", "host")}),
    ],
)  # fmt: skip
def test_options_are_of_the_plan(dataset, command, measured, words, wanted):
    command(dataset, *words.split())
    assert {name: getattr(measured[0], name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (["gds=no", "cold>=11.4", "hot >= 50"], []),
        (["gds=yes"], ["gds=yes: it is no. GDS does not help you here."]),
        (["cold>=11.5", "hot>=60"], ["cold>=11.5: bounce reads 11.4 GB/s", "hot>=60: mapped reads 52.3 GB/s"]),
    ],
)
def test_rules_that_do_not_hold_end_it_with_1(dataset, command, measured, rules, why):
    words = [word for rule in rules for word in ("--expect", rule)]
    said = command(dataset, *words, code=1 if why else 0)
    assert [line for line in said.err.splitlines() if line.startswith("not met: ")] == [
        f"not met: {one}" for one in why
    ]
    assert "VERDICT" in said.out
    measured.changes = ({"hot": None},)
    assert "hot>=1: no row was measured" in command(dataset, "--expect", "hot>=1", code=1).err


def test_a_path_or_a_dataset_to_make(dataset, cli, measured, tmp_path):
    assert cli("bench", code=2).err == (
        "error: PATH is missing\nhint: Without a dataset: gdsload bench --make 8GiB DIR\n"
    )
    for more in (dataset, "--commands"):
        assert "--make takes no PATH" in cli("bench", more, "--make", "1MiB", tmp_path, code=2).err
    assert "'lots' is not a size" in cli("bench", "--make", "lots", tmp_path, code=2).err
    assert "there is no room" in cli("bench", "--make", "900000TiB", tmp_path, code=1).err
    assert not measured
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["bench", "inspect"])
def test_a_page_that_cannot_be_written_is_refused_before_the_work(dataset, cli, measured, tmp_path, command):
    assert "the page cannot be written there" in cli(command, dataset, "--html", tmp_path / "no" / "x", code=1).err
    assert not measured


def test_a_dataset_that_cannot_be_measured_is_refused(tmp_path, command, dataset):
    assert "there is no dataset here" in command(tmp_path / "nothing", code=1).err
    with gdsload.ShardWriter(tmp_path / "empty", {"x": "str"}):
        pass
    assert "no samples with bytes to measure" in command(tmp_path / "empty", code=2).err
    assert "needs a CUDA device" in command(dataset, "--backends", "bounce", code=1).err


@pytest.mark.parametrize("fails", [False, True])
def test_a_made_dataset_is_removed(command, measured, monkeypatch, tmp_path, fails):
    samples = []
    made = bench.run_bench

    def look(plan, *, progress):
        samples.append((len(plan.dataset), plan.dataset.schema["x"].shape))
        if fails:
            raise KeyboardInterrupt
        return made(plan, progress=progress)

    monkeypatch.setattr(bench, "run_bench", look)
    said = command("--make", "1MiB", tmp_path, "--row", "64KiB", code=130 if fails else 0)
    assert samples == [(16, (65536,))]
    assert list(tmp_path.iterdir()) == []
    assert fails or f"gdsload bench --make 8GiB {tmp_path} --row 65536 --device cpu --step-ms MS" in said.out


def test_the_next_commands_have_the_options_that_chose_what_is_measured(command, dataset, measured):
    options = ["--shuffle", "full", "--batch-size", 7, "--backends", "auto,host"]
    found = command(dataset, *options, "--turns", 5, "--json").tree["verdict"]["next"]
    kept = "gdsload bench /data/imagenet --shuffle full --batch-size 7 --device cpu --backends auto,host"
    assert found == [f"{kept} --step-ms MS", f"{kept} --commands"]


def test_commands_of_other_programs_are_printed_and_nothing_is_measured(dataset, command, measured):
    said = command(dataset, "--commands")
    words = shlex.split(said.out, comments=True)
    assert words[0] == "fio"
    assert {"--rw=randread", "--bs=4k", "--direct=1", "--readonly"} <= set(words)
    assert f"--filename={next(dataset.glob('*.safetensors')).resolve()}" in words
    assert not measured


@pytest.mark.parametrize(("by", "code"), [("Ctrl-C", 130), ("SIGTERM", 143)])
def test_what_there_is_is_printed_when_it_is_stopped(dataset, command, measured, by, code):
    measured.changes = ({"stopped": f"by {by} after 4 of 20 turns", "hot": None},)
    said = command(dataset, "--expect", "gds=yes", code=code)
    assert "COLD" in said.out
    assert said.err.endswith(f"stopped: by {by} after 4 of 20 turns\n")


def test_bars_have_other_characters_where_there_are_no_blocks(dataset, command, measured, monkeypatch):
    terminal = Terminal("ascii")
    monkeypatch.setattr("sys.stdout", terminal)
    command(dataset)
    assert "####" in terminal.text
    assert "?" not in terminal.text.partition("COLD")[2].partition("bytes by path")[0]


@pytest.mark.slow
def test_too_few_open_files_are_one_error(dataset):
    """The processes of torch's loader would print tracebacks, or end in an error of torch's."""
    words = f"ulimit -n 20; {sys.executable} -m gdsload bench {dataset} --device cpu --workers 1 --turns 1"
    found = subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=False)
    _, error, hint = found.stderr.splitlines()
    assert error == "error: torch's loader needs 28 open files, and the limit is 20"
    assert "ulimit -n" in hint
