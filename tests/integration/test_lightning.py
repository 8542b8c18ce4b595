import warnings

import pytest
import pytorch_lightning as pl
import torch

import gdsload
from tests.integration.loading import SAMPLES, STEPS, load, numbers, write


class Model(pl.LightningModule):
    """Notes which samples it is given, batch by batch."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, batch, _):
        self.seen.append(batch["x"].flatten().int().tolist())
        return self.layer(batch["x"]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Data(pl.LightningDataModule):
    def __init__(self, path):
        super().__init__()
        self.path = path

    def train_dataloader(self):
        return load(self.path)


def epochs(path, count, **options):
    """The batches of some epochs, as they come without Lightning."""
    with load(path, **options) as loader:
        return [batch for _ in range(count) for batch in numbers(loader)]


def trainer(folder, **options):
    return pl.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def fit(made, model, loader, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.fit(model, loader, **options)


@pytest.mark.parametrize("given", [load, Data], ids=["loader", "module"])
def test_trains_untouched_and_shuffles_each_epoch_anew(path, tmp_path, given):
    loader = given(path)
    model, made = Model(), trainer(tmp_path, max_epochs=3, enable_checkpointing=False)
    fit(made, model, loader)
    assert made.train_dataloader is loader or isinstance(made.train_dataloader, gdsload.DataLoader)
    assert model.seen == epochs(path, 3)
    assert epochs(path, 1) != epochs(path, 2)[STEPS:]


def test_nothing_is_warned_of_a_loader_that_evaluates(path, tmp_path):
    class Evaluated(Model):
        def validation_step(self, batch, _):
            return self.layer(batch["x"]).mean()

    made = trainer(tmp_path, max_epochs=2, enable_checkpointing=False)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        made.fit(Evaluated(), load(path), load(path, shuffle=False))
    assert [str(one.message) for one in found if "loader" in str(one.message)] == []


MIDDLE = [1, 6, STEPS - 1, STEPS, STEPS + 1, STEPS + 7, 2 * STEPS - 1, 2 * STEPS, 2 * STEPS + 1, 3 * STEPS - 1]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run of three epochs with a checkpoint after each step and, as by default, after each epoch."""
    folder = tmp_path_factory.mktemp("saved")
    savers = [
        pl.callbacks.ModelCheckpoint(folder, "step-{step}", every_n_train_steps=1, save_top_k=-1),
        pl.callbacks.ModelCheckpoint(folder, "end-{step}", save_top_k=-1),
    ]
    model = Model()
    fit(trainer(folder, max_epochs=3, callbacks=savers), model, load(write(folder / "d")))
    assert model.seen == epochs(folder / "d", 3)
    return folder


@pytest.mark.parametrize("name", [*(f"step-step={n}" for n in MIDDLE), f"end-step={STEPS}", f"end-step={2 * STEPS}"])
def test_every_checkpoint_resumes_exactly(saved, tmp_path, name):
    model, made = Model(), trainer(tmp_path, max_epochs=3, enable_checkpointing=False)
    fit(made, model, load(saved / "d"), ckpt_path=saved / f"{name}.ckpt")
    assert model.seen == epochs(saved / "d", 3)[int(name.rpartition("=")[2]) :]
    assert made.global_step == 3 * STEPS


@pytest.mark.parametrize("saves", [{"every_n_train_steps": 5}, {}], ids=["last step", "end of epoch"])
def test_a_limited_epoch_ends_where_lightning_says(path, tmp_path, saves):
    limits = {"max_epochs": 2, "limit_train_batches": 5}
    saver = pl.callbacks.ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, **saves)
    whole, rest = Model(), Model()
    fit(trainer(tmp_path, callbacks=[saver], **limits), whole, load(path))
    fit(trainer(tmp_path, enable_checkpointing=False, **limits), rest, load(path), ckpt_path=tmp_path / "step=5.ckpt")
    both = epochs(path, 2)
    assert whole.seen == both[:5] + both[STEPS : STEPS + 5]
    assert rest.seen == both[STEPS : STEPS + 5]


def test_batches_by_length_resume_after_an_epoch(tmp_path):
    with gdsload.ShardWriter(tmp_path / "d") as writer:
        writer.write_batch({"x": [torch.full((n % 7 + 1, 1), float(n)) for n in range(SAMPLES)]})

    def batches():
        return gdsload.DataLoader(
            tmp_path / "d", batch_sampler=gdsload.TokenBudget(tmp_path / "d", "x", 64), ragged="varlen", device="cpu",
            transform=lambda batch: {"x": batch["x"].values},
        )  # fmt: skip

    whole, rest = Model(), Model()
    saver = pl.callbacks.ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    fit(trainer(tmp_path, max_epochs=2, callbacks=[saver]), whole, batches())
    resumed = trainer(tmp_path, max_epochs=2, enable_checkpointing=False)
    fit(resumed, rest, batches(), ckpt_path=tmp_path / "epoch=0.ckpt")
    assert rest.seen == whole.seen[-len(rest.seen) :]
    assert len(rest.seen) == resumed.num_training_batches


def test_overfit_batches_takes_loaders_in_order(path, tmp_path):
    model = Model()
    made = trainer(tmp_path, max_epochs=3, overfit_batches=2, enable_checkpointing=False)
    fit(made, model, load(path, shuffle=False))
    assert model.seen == epochs(path, 1, shuffle=False)[:2] * 3


def test_overfit_batches_is_refused_for_shuffled_loaders(path, tmp_path):
    """Lightning would make another loader without shuffle; docs/frameworks.md says to pass one."""
    made = trainer(tmp_path, max_epochs=1, overfit_batches=2, enable_checkpointing=False)
    with pytest.raises(ValueError, match="needs to subclass `torch.utils.data.DataLoader`"):
        fit(made, Model(), load(path))
