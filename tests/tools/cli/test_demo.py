import pytest

import gdsload
from gdsload.shards.gather_host import one_thread
from gdsload.tools.digits import run_demo


@pytest.fixture(scope="module", autouse=True)
def data():
    pytest.importorskip("sklearn", reason="the demo's data come with scikit-learn")
    with one_thread():  # others may want the processors, too
        yield


def test_demo_reads_more_than_95_percent_of_held_out_digits(tmp_path):
    result = run_demo(device="cpu", epochs=12, keep=str(tmp_path / "digits"))
    assert result.accuracy > 0.95
    assert result.held_out == 359
    assert 0 <= result.wait_share <= 1
    assert result.backend.chosen == "host"
    dataset = gdsload.ShardDataset(tmp_path / "digits")
    assert len(dataset) == 1797
    assert len(dataset.shards) > 1
    assert result.backend.bytes_by_path["host"] > 0


def test_demo_prints_what_it_found(cli):
    # One epoch is too little for 95 %, and the exit code says so.
    out = cli("demo", "--epochs", "1", "--device", "cpu", code=1).out
    assert [line.split()[0] for line in out.splitlines()] == ["accuracy", "speed", "waiting", "backend"]
    assert "host" in out


def test_demo_replaces_nothing(tmp_path, cli):
    (tmp_path / "file").write_text("mine")
    said = cli("demo", "--device", "cpu", "--keep", tmp_path, code=1).err
    assert said == (
        f"error: {tmp_path}: there is something already\nhint: Name another folder, or remove this one first.\n"
    )
