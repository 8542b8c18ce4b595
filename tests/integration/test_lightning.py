import warnings

import pytorch_lightning as pl
import torch

import gdsload

SAMPLES, BATCH = 100, 8


def write(path):
    with gdsload.ShardWriter(path, shard_bytes="256B") as writer:
        writer.write_batch({"x": torch.arange(SAMPLES, dtype=torch.float32)[:, None]})
    return path


class Model(pl.LightningModule):
    """Notes which samples it is given, epoch by epoch."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def on_train_epoch_start(self):
        self.seen.append([])

    def training_step(self, batch, _):
        if not self.seen:  # Lightning calls no on_train_epoch_start for the rest of an epoch
            self.seen.append([])
        self.seen[-1] += batch["x"].flatten().int().tolist()
        return self.layer(batch["x"]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


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


def test_trains_untouched_and_shuffles_each_epoch_anew(tmp_path):
    loader = gdsload.DataLoader(write(tmp_path / "d"), BATCH, shuffle=True, device="cpu")
    model, made = Model(), trainer(tmp_path, max_epochs=3, enable_checkpointing=False)
    fit(made, model, loader)
    assert made.train_dataloader is loader
    assert [sorted(seen) for seen in model.seen] == [list(range(SAMPLES))] * 3
    expected = gdsload.DataLoader(tmp_path / "d", BATCH, shuffle=True, device="cpu")
    for seen in model.seen:
        assert [x for batch in expected for x in batch["x"].flatten().int().tolist()] == seen


def test_checkpoint_in_the_middle_of_an_epoch_resumes_exactly(tmp_path):
    path = write(tmp_path / "d")
    whole = Model()
    fit(
        trainer(tmp_path, max_epochs=2, enable_checkpointing=False),
        whole,
        gdsload.DataLoader(path, BATCH, shuffle=True, device="cpu"),
    )
    first = Model()
    saver = pl.callbacks.ModelCheckpoint(dirpath=tmp_path, filename="at", every_n_train_steps=5)
    stopped = trainer(tmp_path, max_steps=5, max_epochs=2, callbacks=[saver])
    fit(stopped, first, gdsload.DataLoader(path, BATCH, shuffle=True, device="cpu"))
    second = Model()
    resumed = trainer(tmp_path, max_epochs=2, enable_checkpointing=False)
    loader = gdsload.DataLoader(path, BATCH, shuffle=True, device="cpu")
    fit(resumed, second, loader, ckpt_path=tmp_path / "at.ckpt")
    assert first.seen[0] == whole.seen[0][: 5 * BATCH]
    assert [x for seen in second.seen for x in seen] == whole.seen[0][5 * BATCH :] + whole.seen[1]
