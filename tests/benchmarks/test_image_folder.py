"""The benchmark of training on a folder of JPEGs: one tiny run of it."""

import json

from benchmarks import image_folder
from gdsload.shards.gather_host import one_thread


def test_a_tiny_run_on_the_cpu(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("os.sync", lambda: None)  # of all that others write, too
    out = tmp_path / "folder.json"
    tiny = ["--images", "12", "--batch-size", "4", "--epochs", "1", "--out", str(out)]
    with one_thread():
        assert image_folder.main(tiny) == 0
    found = json.loads(out.read_text())["results"]
    assert {"gdsload, kept encoded", "gdsload, the middle decoded once", "the steps alone"} < set(found)
    assert all(entry["images"] == 12 and entry["epoch_s"][0] > 0 for entry in found.values())
    assert "s an epoch" in capsys.readouterr().out
