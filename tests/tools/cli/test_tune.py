import json

import numpy as np
import pytest
import torch

import gdsload
from gdsload.errors import ReadError
from gdsload.tools.bench import make_plan, run_tune
from gdsload.tools.bench import tuning as tune
from gdsload.tools.bench.tuning import axes, best_of
from gdsload.tools.cli import main
from gdsload.tools.cli import tune as command


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("tune") / "shards"
    with gdsload.ShardWriter(path, shard_bytes="256KiB") as writer:
        writer.write_batch({"x": np.random.default_rng(0).integers(0, 256, (700, 1024), np.uint8)})
    return path


def measured(*medians, spread=0.01):
    """A state of the cache: the contenders' rates."""
    return [
        {"contender": str(number), "gb_per_s": {"median": rate, "q1": rate * (1 - spread), "q3": rate * (1 + spread)}}
        for number, rate in enumerate(medians)
    ]


@pytest.mark.parametrize(
    ("cold", "hot", "winner"),
    [
        (measured(1, 1.5, 2), measured(5, 5, 5), 2),
        (measured(1, 1.5, 2), measured(5, 5, 4), 1),  # slower in the other state
        (measured(1, 1.04, 0.9), measured(5, 5.1, 5), 0),  # too little
        (measured(1, 1.5, 2, spread=0.5), measured(5, 5, 5, spread=0.5), 0),  # within the spread
        ([], measured(5, 5, 6), 2),
        (measured(1, 2, 1), [], 1),
        ([], [], 0),
        (measured(1, 1.2), measured(5, 6), 1),
    ],
)
def test_only_what_is_faster_beyond_the_spread_and_nowhere_slower_wins(cold, hot, winner):
    assert best_of([cold, hot]) == winner


def test_settings_are_searched_within_the_budgets(dataset, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # default budgets do not follow a GPU's memory
    plan = make_plan(str(dataset), device="cpu")
    found = dict(axes(plan, {"prefetch_bytes": 2**30}))
    assert found == {"read_threads": [4, 8, 16, 32], "prefetch_bytes": [2**30, 2**29]}  # 256 MiB is the default
    plan = make_plan(str(dataset), device="cpu")
    object.__setattr__(plan, "device", torch.device("cuda"))
    found = dict(axes(plan, {}))
    assert found["prefetch_bytes"] == [2**28, 2**27]
    assert found["pinned_bytes"] == [48 * 2**20, 24 * 2**20]


@pytest.fixture
def fast(monkeypatch):
    """What is said to be measured: the rate of each contender, by its settings."""
    rates = {}

    def say(plan, routes, *_):
        entries = measured(*(rates.get(json.dumps(route.settings), 1.0) for route in routes))
        for found, route in zip(entries, routes, strict=True):
            found |= {"contender": route.name, "first_batch_s": {"median": 0.1}, "wait_share": {"median": 0.5}}
        return {"state": "hot", "checked": "said", "warning": "", "contenders": entries}

    monkeypatch.setattr(tune, "measure_cold", say)
    monkeypatch.setattr(tune, "measure_hot", say)
    return rates


def test_one_setting_after_the_other(dataset, fast, capsys):
    fast[json.dumps({"read_threads": 8})] = 2.0
    fast[json.dumps({"read_threads": 8, "prefetch_bytes": 2**27})] = 3.0
    assert main(["tune", str(dataset), "--device", "cpu", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["settings"] == {"read_threads": 8, "prefetch_bytes": 2**27}
    assert [found["best"] for found in record["rounds"]] == ["read_threads=8", "read_threads=8, prefetch_bytes=128 MiB"]
    assert [checked["samples"] for checked in record["verified"]] == [512, 512]
    assert "file" not in record


def test_what_came_of_it_can_be_pasted(dataset, fast, capsys):
    fast[json.dumps({"read_threads": 8})] = 2.0
    fast[json.dumps({"read_threads": 8, "prefetch_bytes": 2**27})] = 3.0
    assert main(["tune", str(dataset), "--device", "cpu"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "DataLoader" in line)
    assert line == 'gdsload.DataLoader(..., read_threads=8, prefetch_bytes="128MiB")'
    with eval(line.replace("...", "dataset, device='cpu'")) as loader:
        assert loader._plan.backend.read_threads == 8
        assert loader._plan.prefetch_bytes == 2**27


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"pinned_bytes": 24 * 2**20}, 'pinned_bytes="24MiB"'),
        ({"prefetch_bytes": 3 * 2**19}, "prefetch_bytes=1572864"),  # no whole number of MiB
        ({"read_threads": 2**20}, "read_threads=1048576"),
    ],
)
def test_sizes_are_written_as_they_are(settings, line):
    assert command._call(settings) == f"gdsload.DataLoader(..., {line})"


def test_where_nothing_helps_the_defaults_stay(dataset, fast, capsys):
    assert main(["tune", str(dataset), "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "the defaults stay: nothing is faster beyond the spread" in out
    assert "DataLoader(" not in out


def test_wrong_bytes_end_it_with_1_and_no_settings(dataset, fast, monkeypatch, capsys):
    def wrong(*_):
        raise ReadError("contender is wrong")

    monkeypatch.setattr(tune, "check_route", wrong)
    assert main(["tune", str(dataset), "--device", "cpu"]) == 1
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_it_measures(dataset, capsys, monkeypatch):
    """Nothing made up: short trials, and what they come to."""
    monkeypatch.setattr("gdsload.tools.bench.measure._SHORT_S", 0.0)
    arguments = ["--batch-size", "64", "--shuffle", "full", "--trials", "3", "--seconds", "0.01", "--device", "cpu"]
    assert main(["tune", str(dataset), *arguments]) == 0
    out = capsys.readouterr().out
    assert "read_threads, hot (" in out
    assert "prefetch_bytes=128 MiB" in out
    assert "gdsload.DataLoader(..., " in out or "the defaults stay: nothing is faster" in out


def test_trials_that_are_too_short_decide_nothing(dataset, fast, capsys, monkeypatch):
    fast[json.dumps({"read_threads": 8})] = 2.0
    said = tune.measure_hot
    monkeypatch.setattr(tune, "measure_hot", lambda *of: said(*of) | {"warning": "a trial took 2 ms alone"})
    monkeypatch.setattr(tune, "measure_cold", lambda *of: {"state": "not cold", "contenders": []})
    assert main(["tune", str(dataset), "--device", "cpu"]) == 0
    assert "the defaults stay: no trial was long enough to tell" in capsys.readouterr().out


def test_samples_without_bytes(tmp_path, capsys):
    with gdsload.ShardWriter(tmp_path / "none") as writer:
        writer.write_batch({"x": np.zeros((64, 0), np.uint8)})
    arguments = ["--batch-size", "16", "--trials", "3", "--seconds", "0.01", "--device", "cpu"]
    assert main(["tune", str(tmp_path / "none"), *arguments]) == 0
    assert "no trial was long enough to tell" in capsys.readouterr().out


def test_too_few_trials_and_wrong_usage(dataset, capsys):
    with pytest.raises(gdsload.OptionError, match="show no spread"):
        run_tune(make_plan(str(dataset), device="cpu", trials=2))
    assert main(["tune", str(dataset), "--prefetch-bytes", "1KiB"]) == 2
    with pytest.raises(SystemExit, match="2"):
        main(["tune"])
