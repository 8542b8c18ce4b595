"""The comparison of cold starts runs, and compares bytes."""

import io
import json
import subprocess
from dataclasses import asdict

import pytest

import gdsload
from benchmarks.gpu import cold_start, cold_trial
from benchmarks.images import jpegs


@pytest.fixture
def trials_here(monkeypatch):
    """Trials are done in this process: to start one takes longer. Only the check has a separate process."""
    in_a_process = subprocess.run

    def run(command, **options):
        if json.loads(options["input"])["op"] == "check":
            return in_a_process(command, **options)
        assert command[1:] == ["-m", cold_trial.__name__]
        monkeypatch.setattr("sys.stdin", io.StringIO(options["input"]))
        cold_trial.main()
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("subprocess.run", run)


@pytest.mark.usefixtures("trials_here")
def test_it_prints_a_line_for_each_form_and_keeps_a_record(tmp_path, capsys):
    options = ["--device", "cpu", "--bytes", "4MiB", "--rounds", "1", "--cases", "images-block", "--workers", "0"]
    options += ["--forms", "gdsload", "torch", "--work-dir", str(tmp_path), "--out", str(tmp_path / "record.json")]
    assert cold_start.main(options) == 0
    lines = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "first batch" in line]
    assert lines == ["gdsload", "torch"]
    record = json.loads((tmp_path / "record.json").read_text())
    assert str(tmp_path) not in json.dumps(record)
    (found,) = record["cases"]
    for form in ("gdsload", "torch"):
        assert [each["median"] > 0 for each in found["forms"][form]["gb_s"]] == [True] * 3
    (trial,) = found["trials"]["gdsload"]
    assert trial["resident"][0] < 0.01  # cold, as the kernel says
    assert sum(trial["paths"][0].values()) >= found["bytes"]
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]  # gigabytes each: nothing may stay


@pytest.mark.parametrize("row_bytes", [(64, 64), (40, 300)], ids=["equal", "ragged"])
def test_a_wrong_byte_is_found(tmp_path, row_bytes):
    cold_start.write(cold_start.Case("small", row_bytes, 4, "full"), tmp_path, 4096)
    order = {"shards": str(tmp_path / "shards"), "rows": str(tmp_path / "rows.bin"), "form": "gdsload", "device": "cpu"}
    order |= {"bounds": str(tmp_path / "bounds.npy"), "batch": 4, "shuffle": "full", "decoded": False}
    files = [str(file) for file in (tmp_path / "shards").glob("*.safetensors")]
    rows = cold_trial.check(order, files)["rows"]
    assert rows == 4096 * 2 // sum(row_bytes)
    last = bytearray((tmp_path / "rows.bin").read_bytes())
    last[-1] ^= 1
    (tmp_path / "rows.bin").write_bytes(last)
    with pytest.raises(RuntimeError, match=f"row {rows - 1} has other bytes"):
        cold_trial.check(order, files)


@pytest.mark.parametrize("wrong", ["another number", "another image"])
def test_a_wrong_jpeg_is_found(tmp_path, monkeypatch, wrong):
    for module in (cold_start, cold_trial):
        monkeypatch.setattr(module, "DIFFERENT", 8)
    case = cold_start.Case("small", (57_000, 57_000), 4, "block", decoded=True)
    cold_start.write(case, tmp_path, 2 * 2**20)
    order = {"shards": str(tmp_path / "shards"), "form": "gdsload", "device": "cpu", "op": "check", **asdict(case)}
    assert cold_trial.check(order, list(map(str, (tmp_path / "shards").glob("*.safetensors"))))["rows"] > 20
    images = jpegs(5)
    with gdsload.ShardWriter(tmp_path / "wrong", {"x": gdsload.Field("image"), "n": gdsload.Field("int64")}) as writer:
        for number in range(5):
            writer.write({"x": images[number and number - 1], "n": number or 7 * (wrong == "another number")})
    order["shards"] = str(tmp_path / "wrong")
    with pytest.raises(RuntimeError, match="each once|same pixels"):
        cold_trial.check(order, list(map(str, (tmp_path / "wrong").glob("*.safetensors"))))
