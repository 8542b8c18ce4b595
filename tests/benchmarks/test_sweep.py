"""The sweep runs, and its record has every value of every setting."""

import json
import re

import pytest

from benchmarks import sweep
from gdsload import Bounce
from gdsload.engine import pace
from gdsload.loader import budgets


@pytest.mark.slow
def test_every_value_has_its_trials(tmp_path, capsys):
    options = ["--small", "--bytes", "1MiB", "--row-bytes", "4096", "--rounds", "2", "--seconds", "0.01"]
    before = (pace.LEAST, pace.MOST)
    out = tmp_path / "sweep.json"
    assert (
        sweep.main([*options, "--out", str(out), "--device", "cpu", "--work-dir", str(tmp_path), "--states", "hot"])
        == 0
    )
    assert before == (pace.LEAST, pace.MOST)
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.json"]
    record = json.loads(out.read_text(encoding="utf-8"))
    assert [found["setting"] for found in record["sweeps"]] == [
        "reads ahead", "prefetch", "group bytes", "threads"
    ]  # fmt: skip
    for found in record["sweeps"]:
        assert (found["backend"], found["state"], len(found["values"])) == ("host", "hot", 2)
        for entry in found["values"]:
            assert len(entry["gb_s"]) == 2
            assert 0 < entry["q1"] <= entry["median"] <= entry["q3"]
    assert [entry["depth"] for entry in record["sweeps"][0]["values"]] == [4, 1]
    assert "/" not in "".join(record["command"])
    assert str(tmp_path) not in json.dumps(record)
    text = capsys.readouterr().out
    assert "adaptive *" in text
    assert "mean nothing" in text


def test_on_a_gpu_the_ring_is_searched_too():
    found = dict(sweep._settings("bounce"))
    assert found.keys() == {
        "reads ahead",
        "prefetch",
        "pinned",
        "group bytes",
        "threads",
        "block bytes",
    }
    sizes = {name for name in vars(budgets) if re.fullmatch("_(LEAST|MOST)?_?(GROUP|LANDING)_BYTES.*", name)}
    assert len(sizes) == 5
    assert all({name for _, name, _ in value.patches} == sizes for value in found["group bytes"][1:])
    assert found["block bytes"][4].options == {"backend": Bounce(pinned=12 * 2**23)}  # 8 MiB: the default
