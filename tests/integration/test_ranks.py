"""Loaders that were made before their framework has made the ranks, as most scripts do: two processes, gloo."""

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import gdsload

SAMPLES, BATCH = 200, 8
ROOT = Path(gdsload.__file__).resolve().parent.parent

LIGHTNING = """
    import json, os, sys, warnings
    import pytorch_lightning as pl
    import torch
    import gdsload

    warnings.simplefilter("ignore")
    path, folder = sys.argv[1:]

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(1, 1), []

        def training_step(self, batch, _):
            self.seen.append(batch["x"].flatten().int().tolist())
            return self.layer(batch["x"]).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    model = Model()
    made = pl.Trainer(
        max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
    )
    made.fit(model, gdsload.DataLoader(path, 8, shuffle=True, device="cpu"))
    with open(f"{folder}/rank{made.global_rank}.json", "w") as file:
        json.dump(model.seen, file)
"""
ACCELERATE = """
    import json, sys
    import gdsload

    path, folder = sys.argv[1:]
    loader = gdsload.DataLoader(path, 8, shuffle=True, device="cpu")
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(loader)
    seen = [batch["x"].flatten().int().tolist() for batch in loader]
    assert len(seen) == len(loader)
    with open(f"{folder}/rank{accelerator.process_index}.json", "w") as file:
        json.dump(seen, file)
    accelerator.end_training()
"""


@pytest.fixture
def path(tmp_path):
    with gdsload.ShardWriter(tmp_path / "d", shard_bytes="256B") as writer:
        writer.write_batch({"x": torch.arange(SAMPLES, dtype=torch.float32)[:, None]})
    return tmp_path / "d"


def run(script, path, folder, ranks):
    """Run a script, in one process or as each of its ranks, and give what each rank has seen."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    file = folder / "script.py"
    file.write_text(textwrap.dedent(script))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MASTER_PORT": port}
    started = []
    for rank in ranks:
        its_own = {} if rank is None else {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(ranks)), "MASTER_ADDR": "127.0.0.1",
        }  # fmt: skip
        started.append(
            subprocess.Popen(
                [sys.executable, str(file), str(path), str(folder)],
                env=environment | its_own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
        )  # fmt: skip
    ends = [one.communicate(timeout=110)[0] for one in started]
    assert [one.returncode for one in started] == [0] * len(started), ends
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("script", "ranks"), [(LIGHTNING, [None]), (ACCELERATE, [0, 1])], ids=["lightning", "accelerate"]
)
def test_each_rank_gets_its_own_samples(path, tmp_path, script, ranks):
    first, second = run(script, path, tmp_path, ranks)
    assert [len(batch) for batch in first] == [len(batch) for batch in second] == [BATCH] * 12 + [SAMPLES // 2 % BATCH]
    assert sorted(x for rank in (first, second) for batch in rank for x in batch) == list(range(SAMPLES))
