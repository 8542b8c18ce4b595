"""The benchmark of encoded images: one tiny run of it."""

import json

from benchmarks import images


def test_a_tiny_run_on_the_cpu(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("os.sync", lambda: None)  # of all that others write, too
    out = tmp_path / "images.json"
    tiny = ["--images", "12", "--batch-size", "4", "--rounds", "1", "--without-torch", "--out", str(out)]
    assert images.main(tiny) == 0
    record = json.loads(out.read_text())
    assert record["beside_the_cpu"] == {"mean": 0.0, "most": 0.0}
    assert set(record["results"]) == {"gdsload", "gdsload-whole", "decoder-kept", "work", "decoder"}
    assert all(entry["images_s"][0] > 0 for entry in record["results"].values())
    assert "CPU s for 1000" in capsys.readouterr().out
