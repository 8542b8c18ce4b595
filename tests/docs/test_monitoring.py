"""The recipes of docs/monitoring.md, run."""

import re
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import gdsload

TEXT = (Path(__file__).parents[2] / "docs/monitoring.md").read_text()


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the blocks under a heading; gives their names, with a loader whose epoch has run."""
    monkeypatch.chdir(tmp_path)
    gdsload.convert({"x": np.arange(640)}, "shards")
    with gdsload.DataLoader("shards", 8, device="cpu", mmap=False) as loader:
        list(loader)
        noted = []
        known = {"gdsload": gdsload, "loader": loader, "train": noted.append, "noted": noted}

        def blocks(heading):
            text = (
                TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0] if heading else TEXT.partition("\n## ")[0]
            )
            for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
                exec(block, known)
            return known

        yield blocks


def test_an_epoch_is_a_line_in_the_log_too(run, caplog, capsys):
    run("")
    (line,) = [record.getMessage() for record in caplog.records if record.name == "gdsload"]
    assert capsys.readouterr().out.rstrip() == line
    assert re.match(r"epoch 1: 640 samples, 5\.12 kB in \S+ s, .*B/s \(host 100%\), waited \d+\.\d%", line)


def test_the_diagnosis_and_the_headspace(run, capsys):
    run("What limits the loop")
    assert re.search(r"^\w.* limits this run.*\nDo: ", capsys.readouterr().out)
    assert len({id(batch) for batch in run("Headspace: training without loading")["noted"]}) == 8


def test_loggers_of_scalars(run):
    found = []
    run("What limits the loop")["writer"] = type("", (), {"add_scalar": lambda _, *given: found.append(given)})()
    run("TensorBoard, Weights & Biases, MLflow")
    assert ("gdsload/bytes/host", 2 * 640 * 8, 79) not in found  # every hundredth step
    assert {"gdsload/ready_share", "gdsload/next_p99_s", "gdsload/bytes/host"} <= {name for name, _, _ in found}


def test_an_observer(run):
    known = run("Custom observers")
    assert [type(one).__name__ for one in known["loader"].stats.observers] == ["Slow"]
    known["loader"].stats.delivered(4, False, 2.0, 2.0, 2.0)


def test_prometheus_asks_the_loader(run):
    client = pytest.importorskip("prometheus_client")
    known = run("Prometheus")
    try:
        with urllib.request.urlopen("http://localhost:9400/metrics") as answer:
            text = answer.read().decode()
    finally:
        known["server"].shutdown()
        known["server"].server_close()
        client.REGISTRY.unregister(
            next(one for one in client.REGISTRY._collector_to_names if "Loader" in type(one).__name__)
        )
    assert 'gdsload_batches{part=""} 80.0' in text
    assert 'gdsload_bytes_by{part="host"} 5120.0' in text


def test_opentelemetry_asks_the_loader(run):
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    run("OpenTelemetry")
    found = {
        metric.name: metric.data.data_points[0].value
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert (found["gdsload.batches"], found["gdsload.bytes.host"]) == (80, 5120)


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")  # torch 2.11 on a GPU
def test_profilers_see_the_loaders_threads(run):
    names = {event.key for event in run("Profilers")["profiler"].key_averages()}
    assert {"gdsload::read", "gdsload::wait", "gdsload::gather", "enumerate(DataLoader)#Epoch.__next__"} <= names
