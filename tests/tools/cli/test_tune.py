import json
import os

import numpy as np
import pytest
import torch

import gdsload
from gdsload.errors import ReadError
from gdsload.tools.bench import make_plan, run_tune
from gdsload.tools.bench import tuning as tune
from gdsload.tools.bench.tuning import axes, best_of
from gdsload.tools.cli import main


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("tune") / "shards"
    with gdsload.ShardWriter(path, shard_bytes="256KiB") as writer:
        writer.write_batch({"x": np.random.default_rng(0).integers(0, 256, (700, 1024), np.uint8)})
    return path


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "gdsload" / "tuned.json"


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


def test_settings_are_searched_within_the_budgets(dataset):
    plan = make_plan(str(dataset), device="cpu")
    found = dict(axes(plan, {"prefetch_bytes": 2**30}))
    assert found == {"read_threads": [4, 8, 16, 32], "prefetch_bytes": [2**30, 2**29]}  # 256 MiB is the default
    plan = make_plan(str(dataset), device="cpu")
    object.__setattr__(plan, "device", torch.device("cuda"))
    found = dict(axes(plan, {}))
    assert found["prefetch_bytes"] == [2**27, 2**26]
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


def test_one_setting_after_the_other_and_a_loader_takes_what_came_of_it(dataset, config, fast, capsys):
    fast[json.dumps({"read_threads": 8})] = 2.0
    fast[json.dumps({"read_threads": 8, "prefetch_bytes": 2**27})] = 3.0
    assert main(["tune", str(dataset), "--device", "cpu", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["settings"] == {"read_threads": 8, "prefetch_bytes": 2**27}
    assert [found["best"] for found in record["rounds"]] == ["read_threads=8", "read_threads=8, prefetch_bytes=128 MiB"]
    assert [checked["samples"] for checked in record["verified"]] == [512, 512]
    assert record["file"] == str(config)
    assert "read_threads=8 (tuned), prefetch_bytes=134217728 (tuned)" in repr(
        gdsload.DataLoader(dataset, 64, device="cpu")
    )
    fast.clear()
    assert main(["tune", str(dataset), "--device", "cpu"]) == 0
    assert "nothing is faster beyond the spread" in capsys.readouterr().out
    assert "tuned" not in repr(gdsload.DataLoader(dataset, 64, device="cpu"))


def test_nothing_is_kept_in_a_dry_run(dataset, config, fast, capsys):
    fast[json.dumps({"read_threads": 8})] = 2.0
    assert main(["tune", str(dataset), "--device", "cpu", "--dry-run"]) == 0
    assert "kept in    no file" in capsys.readouterr().out
    assert not os.path.exists(config.parent)


def test_wrong_bytes_end_it_with_1_and_no_file(dataset, config, fast, monkeypatch, capsys):
    def wrong(*_):
        raise ReadError("contender is wrong")

    monkeypatch.setattr(tune, "check_route", wrong)
    assert main(["tune", str(dataset), "--device", "cpu"]) == 1
    assert capsys.readouterr().out == ""
    assert not os.path.exists(config)


@pytest.mark.slow
def test_it_measures(dataset, config, capsys, monkeypatch):
    """Nothing made up: short trials, and what they come to is kept, if they count."""
    monkeypatch.setattr("gdsload.tools.bench.measure._SHORT_S", 0.0)
    arguments = ["--batch-size", "64", "--shuffle", "full", "--trials", "3", "--seconds", "0.01", "--device", "cpu"]
    assert main(["tune", str(dataset), *arguments]) == 0
    out = capsys.readouterr().out
    assert "read_threads, hot (" in out
    assert "prefetch_bytes=128 MiB" in out
    (kept,) = json.loads(config.read_text())["entries"]
    assert kept["measured"]["shuffle"] == "full"
    assert kept["measured"]["rounds"]["read_threads, hot"].keys() == {
        "defaults", "read_threads=4", "read_threads=8", "read_threads=16", "read_threads=32"
    }  # fmt: skip


def test_trials_that_are_too_short_decide_nothing(dataset, config, fast, capsys, monkeypatch):
    fast[json.dumps({"read_threads": 8})] = 2.0
    said = tune.measure_hot
    monkeypatch.setattr(tune, "measure_hot", lambda *of: said(*of) | {"warning": "a trial took 2 ms alone"})
    monkeypatch.setattr(tune, "measure_cold", lambda *of: {"state": "not cold", "contenders": []})
    config.parent.mkdir()
    config.write_text('{"format": "gdsload-tuned-1", "entries": []}')
    assert main(["tune", str(dataset), "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "no trial was long enough to tell" in out
    assert "kept in    no file" in out
    assert json.loads(config.read_text())["entries"] == []


def test_a_file_that_cannot_be_written_is_found_before_measuring(dataset, config, fast, capsys, monkeypatch):
    config.parent.mkdir()
    config.write_text("{bad")
    monkeypatch.setattr("gdsload.tools.cli.tune.run_tune", lambda *_: pytest.fail("it measured"))
    assert main(["tune", str(dataset), "--device", "cpu"]) == 1
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # no HOME, and nobody in the list of users
    assert main(["tune", str(dataset), "--device", "cpu"]) == 1
    assert "Set XDG_CONFIG_HOME" in capsys.readouterr().err
    assert repr(gdsload.DataLoader(dataset, 64, device="cpu"))
    assert main(["tune", str(dataset), "--device", "cpu", "--prefetch-bytes", "2TiB", "--dry-run"]) == 1
    assert "prefetch_bytes is 2199023255552, not 1 to 1099511627776" in capsys.readouterr().err


def test_what_was_measured_is_shown_even_if_it_cannot_be_kept(dataset, config, fast, capsys, monkeypatch):
    def refuse(*_):
        raise gdsload.WriteError("no room")

    monkeypatch.setattr("gdsload.tools.cli.tune.save", refuse)
    assert main(["tune", str(dataset), "--device", "cpu", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["measured"]


def test_samples_without_bytes(tmp_path, config, capsys):
    with gdsload.ShardWriter(tmp_path / "none") as writer:
        writer.write_batch({"x": np.zeros((64, 0), np.uint8)})
    arguments = ["--batch-size", "16", "--trials", "3", "--seconds", "0.01", "--device", "cpu"]
    assert main(["tune", str(tmp_path / "none"), *arguments]) == 0
    assert "no trial was long enough to tell" in capsys.readouterr().out


def test_too_few_trials_and_wrong_usage(dataset, capsys):
    with pytest.raises(gdsload.OptionError, match="show no spread"):
        run_tune(make_plan(str(dataset), device="cpu", trials=2))
    assert main(["tune", str(dataset), "--prefetch-bytes", "1KiB"]) == 1
    with pytest.raises(SystemExit, match="2"):
        main(["tune"])
