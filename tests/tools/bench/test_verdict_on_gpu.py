"""The answers of `gdsload bench` on a GPU: they agree with the rows that were measured there."""

import json

import pytest

from gdsload.tools.bench import rows
from gdsload.tools.cli import main

pytestmark = pytest.mark.cuda


@pytest.fixture
def record_of(capsys, monkeypatch):
    monkeypatch.setattr(rows, "TorchRow", rows.ReadRow)  # its workers take seconds to begin

    def measure(path, *words):
        assert main(["bench", str(path), "--device", "cuda", "--seconds", "0.1", "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)

    return measure


@pytest.mark.timeout(170)  # loaders are opened for each cold turn
def test_the_verdict_is_of_what_was_measured(numbered, record_of, tmp_path):
    page = tmp_path / "page.html"
    record = record_of(numbered, "--turns", "5", "--backends", "auto", "--step-ms", "1000", "--html", str(page))
    found, names = record["verdict"], {row["name"] for row in record["cold"]["rows"]}
    assert found["case"] != "no gpu"
    assert found["loading"]["needs_gb_per_s"] == pytest.approx(record["conditions"]["batch_bytes"] / 1e9)
    if record["cold"]["state"] != "cold":
        assert found["gds"] in ("unknown", "no")  # the latter of data in memory
    elif found["gds"] in ("yes", "no", "worse"):
        assert "gds" in names
        assert found["gain_interval"][0] <= found["gain"] <= found["gain_interval"][1]
    elif found["gds"] == "unavailable":
        assert "gds" not in names
        assert found["next"][0].startswith("gdsload doctor ")
    else:
        assert found["sentence"].startswith("No verdict")
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_gdsio_is_among_the_commands(numbered, capsys):
    assert main(["bench", str(numbered), "--device", "cuda:0", "--commands"]) == 0
    assert "\ngdsio -f " in capsys.readouterr().out
