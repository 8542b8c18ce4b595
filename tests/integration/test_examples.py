"""The examples, on scikit-learn's digits: they learn to read them, and come to as many batches as they should."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gdsload
from gdsload.tools.digits import run_demo

ROOT = Path(gdsload.__file__).resolve().parent.parent
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
EXAMPLES = {
    "plain": ([], "accuracy {good}, 266 batches"),
    "ddp": ([], "accuracy {good}, each sample 12 times, 0 once more"),
    "fsdp": (["{folder}"], "accuracy {good} of this rank's digits, 266 batches"),
    "lightning": (["{folder}"], "accuracy {good}, 266 batches"),
    "fabric": (["{folder}/fabric.ckpt"], "accuracy {good}, 266 batches"),
    "accelerate": (["{folder}"], "accuracy {good} of 359, 540 batches"),
    "transformers": (["{folder}"], "accuracy {good}, 266 batches"),
    "ray": (["{folder}"], "accuracy {good} of worker 0's digits, 230 batches"),
    "torchdata": ([], "accuracy {good}, resumed exactly: True, 1797 samples read"),
    "compiled": (["aot_eager"], "accuracy {good}, 1 graphs"),
}


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    path = tmp_path_factory.mktemp("digits") / "digits"
    run_demo(epochs=1, device="cpu", keep=str(path))
    return path


def run(command):
    found = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-4000:]
    return found.stdout


def output(name, path, arguments, launcher=()):
    return run([*launcher, f"examples/train_{name}.py", str(path), *arguments])


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_train(digits, tmp_path, name):
    arguments, wanted = EXAMPLES[name]
    launcher = TORCHRUN if name in ("ddp", "fsdp") else ()
    said = output(name, digits, [one.format(folder=tmp_path) for one in arguments], launcher)
    assert re.search(re.escape(wanted).replace(re.escape("{good}"), r"(1\.000|0\.9\d\d)"), said), said


@pytest.mark.cuda
@pytest.mark.timeout(180)
def test_two_gpus_train_by_nccl(two_gpus, digits):
    assert re.search(r"accuracy (1\.000|0\.9\d\d), each sample .*, by nccl", output("ddp", digits, [], TORCHRUN))


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_a_step_compiled_by_inductor_trains(digits):
    assert re.search(r"accuracy (1\.000|0\.9\d\d), 1 graphs", output("compiled", digits, ["inductor"]))


@pytest.mark.cuda
@pytest.mark.timeout(180)
def test_a_captured_step_trains(digits):
    assert re.search(r"accuracy (1\.000|0\.9\d\d), 264 batches", output("cuda_graph", digits, []))
