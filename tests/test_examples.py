"""The examples that need no framework learn what they are there to learn, small, in this process."""

import importlib.util
import json
import math
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from gdsload.shards.gather_host import one_thread
from gdsload.tools.digits import run_demo

FOLDER = Path(__file__).parent.parent / "examples"


@pytest.fixture
def example(monkeypatch):
    """``example(name)`` is the module; torch has one thread, and a seed."""

    def imported(name):
        found = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        return module

    torch.manual_seed(0)
    with one_thread():
        yield imported


def test_examples_are_short_and_have_a_test():
    """Those of frameworks are tested in tests/integration, each by its name; train and images in tests/docs."""
    lines = {path.stem: len(path.read_text(encoding="utf-8").splitlines()) for path in FOLDER.glob("*.py")}
    frameworks = {name for name in lines if name.startswith("train_")}
    assert set(lines) - frameworks == {"activations", "digits_model", "images", "latents", "tokens", "train", "volumes"}
    tested = (FOLDER.parent / "tests/integration/test_examples.py").read_text(encoding="utf-8")
    assert [name for name in frameworks if f'"{name.removeprefix("train_")}"' not in tested] == []
    assert [name for name, count in lines.items() if count > (40 if name in frameworks else 80)] == []


@pytest.mark.slow
def test_bytes_of_the_documentation_are_predicted_better_than_by_their_frequency(example, tmp_path):
    counts = Counter("\n".join(topics.values()).encode())
    total = counts.total()
    entropy = -sum(count / total * math.log2(count / total) for count in counts.values())
    assert example("tokens").main(str(tmp_path), 40) < entropy - 0.3


@pytest.mark.slow
def test_a_few_features_explain_activations(example, tmp_path):
    assert example("activations").main(str(tmp_path), rows=4096, features=256, epochs=3) > 0.25


@pytest.mark.slow
def test_digits_drawn_from_latents_are_those_asked_for(example, tmp_path):
    run_demo(epochs=1, device="cpu", keep=str(tmp_path / "digits"))
    drawn, wanted = example("latents").main(str(tmp_path / "digits"), str(tmp_path / "latents"), epochs=15)
    images, labels = load_digits(return_X_y=True)
    read = KNeighborsClassifier(3).fit(images / 16, labels).predict(drawn)
    assert (read == wanted.numpy()).mean() > 0.7


@pytest.mark.slow
def test_voxels_of_an_ellipsoid_are_found(example, tmp_path):
    assert example("volumes").main(str(tmp_path / "volumes"), count=16, side=24, epochs=8) > 0.7


@pytest.mark.slow
def test_the_notebook_runs_and_says_what_loading_costs(example, capsys):
    cells = json.loads((FOLDER / "bench.ipynb").read_text(encoding="utf-8"))["cells"]
    names = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
            if "parameters" in cell["metadata"].get("tags", []):
                names |= {"samples": 32, "batch_size": 8, "steps": 4, "workers": 0}
    said = capsys.readouterr().out
    assert min(names["rates"].values()) > 0
    assert "loading costs" in said
    assert str(names["loader"].backend) in said
