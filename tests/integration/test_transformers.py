"""The Trainer of transformers, with batches of ours: from any checkpoint the same run."""

import pytest
import torch
from transformers import TrainingArguments

import gdsload
from gdsload.integrations.transformers import LoaderTrainer

SAMPLES, BATCH, STEPS, EPOCHS = 100, 8, 13, 3


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "d"
    with gdsload.ShardWriter(path) as writer:
        x = torch.rand(SAMPLES, 3, generator=torch.Generator().manual_seed(0))
        writer.write_batch({"x": x, "labels": x.sum(1), "number": torch.arange(SAMPLES)})
    return path


class Model(torch.nn.Module):
    """Notes which samples it is trained with, batch by batch."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(3, 1), []

    def forward(self, x, labels, number):
        if self.training:
            self.seen.append(number.tolist())
        found = self.layer(x)[:, 0]
        return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}


def run(path, folder, *, accumulate=1, options=dict, resume=None, **arguments):
    torch.manual_seed(0)
    made = LoaderTrainer(
        Model(),
        TrainingArguments(
            folder, use_cpu=True, num_train_epochs=EPOCHS, gradient_accumulation_steps=accumulate, report_to=[],
            disable_tqdm=True, logging_strategy="no", **{"save_strategy": "no"} | arguments,
        ),
        train_loader=gdsload.DataLoader(path, **{"batch_size": BATCH, "shuffle": True, "device": "cpu"} | options()),
        eval_loader=gdsload.DataLoader(path, 32, device="cpu"),
    )  # fmt: skip
    made.train(resume_from_checkpoint=resume)
    return made


def expected(path):
    with gdsload.DataLoader(path, BATCH, shuffle=True, device="cpu") as loader:
        return [batch["number"].tolist() for _ in range(EPOCHS) for batch in loader]


def sampler():
    """A sampler that says its epoch, as distributed samplers do."""
    return {"shuffle": False, "sampler": torch.utils.data.DistributedSampler(range(SAMPLES), 1, 0, seed=5)}


@pytest.mark.parametrize("accumulate", [1, 3])
def test_every_checkpoint_resumes_exactly(path, tmp_path, accumulate):
    whole = run(path, tmp_path, accumulate=accumulate, save_strategy="steps", save_steps=1)
    updates = -(-STEPS // accumulate)
    assert whole.model.seen == expected(path)
    assert whole.state.global_step == EPOCHS * updates
    weights = whole.model.layer.weight.tolist()
    for step in {1, updates // 2, updates - 1, updates, updates + 1, 2 * updates, 3 * updates - 1}:
        rest = run(path, tmp_path, accumulate=accumulate, resume=str(tmp_path / f"checkpoint-{step}"))
        epoch, update = divmod(step, updates)
        assert rest.model.seen == expected(path)[epoch * STEPS + update * accumulate :], step
        assert (rest.state.global_step, rest.state.epoch) == (whole.state.global_step, whole.state.epoch)
        assert rest.model.layer.weight.tolist() == weights


def test_a_sampler_that_knows_its_epoch_resumes_exactly(path, tmp_path):
    whole = run(path, tmp_path, options=sampler, save_strategy="steps", save_steps=STEPS + 4)
    rest = run(path, tmp_path, options=sampler, resume=str(tmp_path / f"checkpoint-{STEPS + 4}"))
    assert rest.model.seen == whole.model.seen[STEPS + 4 :]


def test_evaluation_counts_every_sample_once(path, tmp_path):
    made = run(path, tmp_path, max_steps=2)
    found = made.predict(made.eval_dataset)
    assert found.predictions.shape == (SAMPLES,)
    wanted = torch.nn.functional.mse_loss(torch.from_numpy(found.predictions), made.eval_dataset.column("labels"))
    assert made.evaluate()["eval_loss"] == pytest.approx(wanted.item(), rel=1e-5)
