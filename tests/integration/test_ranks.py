"""Loaders that were made before their framework has made the ranks, as most scripts do: two processes, gloo.

Lightning starts them as scripts (``ddp``), by spawn, which pickles the loader, and by fork, as in notebooks.
"""

import json
import os
import socket
import subprocess
import sys
import textwrap

import pytest
import torch

import gdsload
from tests.integration.loading import numbers, write

SAMPLES, BATCH, STEPS = 200, 8, 13

MAIN = """
    if __name__ == "__main__":
        # Before there is a group: functions whose defaults are made at this import would hold the group for good.
        import torch.distributed.nn.functional
        main()

        # A thread of gloo's holds tensors of the last collective until it next runs. If that is while the interpreter
        # is finalized, the process is aborted (https://github.com/pytorch/pytorch/issues/190489).
        import contextlib, gc, os
        gc.collect()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        for task in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:  # it may end now
                assert "gloo" not in file.read()
"""
"""The last lines of each script."""

LIGHTNING = """
    import json, os, sys, warnings
    import pytorch_lightning as pl
    import torch
    import gdsload

    warnings.simplefilter("ignore")
    path, folder, strategy, *resume = sys.argv[1:]
    limits = {"max_epochs": 1, "enable_checkpointing": False}
    if resume:
        saver = pl.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=5, save_top_k=-1)
        limits = {"max_epochs": 2, "max_steps": int(resume[0]), "callbacks": [saver]}

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(1, 1), []

        def training_step(self, batch, _):
            self.seen.append(batch["x"].flatten().int().tolist())
            return self.layer(batch["x"]).mean()

        def on_train_end(self):  # in the process of the rank
            with open(f"{folder}/rank{self.global_rank}.json", "w") as file:
                json.dump(self.seen, file)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    def main():
        made = pl.Trainer(
            accelerator="cpu", devices=2, strategy=strategy, logger=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=folder, **limits,
        )
        loader = gdsload.DataLoader(path, 8, shuffle=True, device="cpu")
        made.fit(Model(), loader, ckpt_path=resume[1] if resume[1:] else None)
"""
ACCELERATE = """
    import json, sys, warnings
    import torch
    import gdsload

    def main():
        path, folder, _ = sys.argv[1:]
        loader = gdsload.DataLoader(path, 8, shuffle=True, device="cpu")
        some = torch.utils.data.Subset(gdsload.ShardDataset(path), range(19))
        odd, ordered = (gdsload.DataLoader(some, 8, device="cpu", tail=tail) for tail in ("share", "pad"))
        from accelerate import Accelerator, skip_first_batches
        from gdsload.integrations.accelerate import prepare

        accelerator = Accelerator(cpu=True)
        loader, odd, ordered = (prepare(accelerator, one) for one in (loader, odd, ordered))
        seen, gathered = [], []
        for batch in loader:
            seen.append(batch["x"].flatten().int().tolist())
            gathered += accelerator.gather_for_metrics(batch["x"]).flatten().int().tolist()
        assert len(seen) == len(loader)
        assert sorted(gathered) == list(range(200))

        loader.set_epoch(0)
        rest = [batch["x"].flatten().int().tolist() for batch in skip_first_batches(loader, 5)]
        assert rest == seen[5:]

        def numbers(loader):
            return [x for batch in loader for x in accelerator.gather_for_metrics(batch["x"]).flatten().int().tolist()]

        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            gathered = numbers(odd)
        assert (len(gathered), len(set(gathered))) == (20, 19)
        assert any("cannot share out the" in str(one.message) for one in found)

        shuffled = prepare(accelerator, gdsload.DataLoader(some, 8, shuffle=True, device="cpu", tail="pad"))
        for padded in (ordered, shuffled):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                batches = list(map(len, (batch["x"] for batch in padded)))
                gathered = numbers(padded)
            assert batches == [8, 8]
            assert sorted(gathered) == list(range(19))

        with open(f"{folder}/rank{accelerator.process_index}.json", "w") as file:
            json.dump(seen, file)
        accelerator.end_training()
"""

TRAINER = """
    import json, os, sys, warnings
    import torch
    from transformers import TrainingArguments
    import gdsload
    from gdsload.integrations.transformers import LoaderTrainer

    warnings.simplefilter("ignore")
    path, folder, _ = sys.argv[1:]
    steps = 13  # of an epoch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(1, 1), []

        def forward(self, x, labels):
            if self.training:
                self.seen.append(labels.int().tolist())
            return {"loss": self.layer(x / 200).mean(), "logits": x}

    def named(batch):
        return {"x": batch["x"], "labels": batch["x"][:, 0]}

    def each_once(found):
        exact = sorted(found.predictions.flatten().tolist()) == sorted(found.label_ids.tolist()) == list(range(19))
        return {"exact": float(exact)}

    def run(resume=None, **options):
        torch.manual_seed(0)
        some = torch.utils.data.Subset(gdsload.ShardDataset(path), range(19))
        loader = gdsload.DataLoader(path, 8, shuffle=True, device="cpu", transform=named)
        held_out = gdsload.DataLoader(some, 8, device="cpu", transform=named, tail="pad")
        arguments = TrainingArguments(
            f"{folder}/trainer", use_cpu=True, num_train_epochs=2, report_to=[], disable_tqdm=True,
            logging_strategy="no", **{"save_strategy": "no"} | options,
        )
        made = LoaderTrainer(
            Model(), arguments, train_loader=loader, eval_loader=held_out, compute_metrics=each_once
        )
        made.train(resume_from_checkpoint=resume)
        return made

    def main():
        made = run(save_strategy="steps", save_steps=5)
        seen, weight = made.model.seen, made.model.layer.weight.tolist()
        assert made.state.global_step == len(seen) == 2 * steps
        assert made.evaluate()["eval_exact"] == 1
        everywhere = [None, None]
        torch.distributed.all_gather_object(everywhere, [x for batch in seen[steps:] for x in batch])
        assert sorted(sum(everywhere, [])) == list(range(200))
        assert seen[steps:] != seen[:steps]

        for step in (5, 20):  # in the middle of either epoch
            rest = run(resume=f"{folder}/trainer/checkpoint-{step}").model
            assert rest.seen == seen[step:], (step, rest.seen, seen)
            assert rest.layer.weight.tolist() == weight
        with open(f"{folder}/rank{os.environ['RANK']}.json", "w") as file:
            json.dump(seen[:steps], file)
"""
SCRIPTS = {"accelerate": (ACCELERATE, [0, 1]), "trainer": (TRAINER, [0, 1])}
"""Scripts that are started as each of their ranks, as torchrun does it; Lightning starts its ranks itself."""


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "d", SAMPLES)


def run(script, path, folder, ranks, *arguments):
    """Run a script, in one process or as each of its ranks, and give what each rank has seen."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    file = folder / "script.py"
    file.write_text(textwrap.dedent(script) + textwrap.dedent(MAIN))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": port}
    started = []
    for rank in ranks:
        its_own = {} if rank is None else {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(ranks)), "MASTER_ADDR": "127.0.0.1",
        }  # fmt: skip
        started.append(
            subprocess.Popen(
                [sys.executable, str(file), str(path), str(folder), *map(str, arguments)],
                env=environment | its_own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
        )  # fmt: skip
    ends = [one.communicate(timeout=170)[0] for one in started]
    codes = [one.returncode for one in started]
    assert not any(codes), f"exit codes {codes}:\n" + "\n".join(ends)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("way", ["ddp_spawn", "ddp_notebook", "accelerate", "trainer"])
def test_each_rank_gets_its_own_samples(path, tmp_path, way):
    script, ranks = SCRIPTS.get(way, (LIGHTNING, [None]))
    first, second = run(script, path, tmp_path, ranks, way)
    sizes = [BATCH] * (STEPS - 1) + [SAMPLES // 2 % BATCH]
    assert [len(batch) for batch in first] == [len(batch) for batch in second] == sizes
    assert sorted(x for rank in (first, second) for batch in rank for x in batch) == list(range(SAMPLES))


@pytest.mark.timeout(180)
def test_ranks_that_are_scripts_get_their_own_samples_and_resume_in_an_epoch(path, tmp_path):
    """``ddp``: a run that ends two steps after its checkpoint, and another that goes on from there."""
    before = run(LIGHTNING, path, tmp_path, [None], "ddp", 7)
    after = run(LIGHTNING, path, tmp_path, [None], "ddp", -1, tmp_path / "step=5.ckpt")
    assert [len(steps) for steps in before + after] == [7, 7, 2 * STEPS - 5, 2 * STEPS - 5]
    seen = [first[:5] + rest for first, rest in zip(before, after, strict=True)]
    for epoch in (slice(0, STEPS), slice(STEPS, None)):
        assert sorted(x for rank in seen for batch in rank[epoch] for x in batch) == list(range(SAMPLES))
    for rank in range(2):
        with gdsload.DataLoader(path, BATCH, shuffle=True, device="cpu", ranks=(rank, 2)) as loader:
            assert seen[rank] == [*numbers(loader), *numbers(loader)]


UNKNOWING = """
    import json, os, sys
    import torch
    from accelerate import Accelerator
    from transformers import TrainingArguments
    import gdsload
    from gdsload.integrations.accelerate import prepare
    from gdsload.integrations.transformers import LoaderTrainer

    def main():
        path, folder, way = sys.argv[1:]
        loader = gdsload.DataLoader(path, 8, device="cpu")
        try:
            if way == "accelerate":
                prepare(Accelerator(), loader)
            else:
                arguments = TrainingArguments(f"{folder}/trainer", report_to=[], save_strategy="no")
                LoaderTrainer(torch.nn.Linear(1, 1), arguments, train_loader=loader).train()
        except gdsload.OptionError as error:
            found = str(error)
        with open(f"{folder}/rank{os.environ['RANK']}.json", "w") as file:
            json.dump(found, file)
"""


@pytest.mark.skipif(torch.accelerator.is_available(), reason="what accelerators do not know of are processes on CPUs")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("way", ["accelerate", "trainer"])
def test_processes_that_an_accelerator_does_not_know_of_are_refused(path, tmp_path, way):
    for found in run(UNKNOWING, path, tmp_path, [0, 1], way):
        assert "2 processes, but the accelerator knows of 1" in found
        assert "use_cpu=True" in found
