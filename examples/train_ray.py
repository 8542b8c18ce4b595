"""Ray Train: the loader is handed to the workers, without `prepare_data_loader`.

usage: gdsload demo --keep digits/ && python examples/train_ray.py digits/ /shared/runs/

The folder of runs is an absolute path, which Ray asks for.
"""

from __future__ import annotations

import sys
import tempfile

import ray.train
import torch
from digits_model import network, parts
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

import gdsload


def work(config: dict[str, object]) -> None:
    """What each worker does; the loader in `config` was pickled, and finds its rank here."""
    loader, held_out = config["train"], config["test"]
    model = prepare_model(network())
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(10):
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    with torch.inference_mode():
        right = [(model(batch["image"]).argmax(1) == batch["label"]).sum() for batch in held_out]
    counts = torch.stack([sum(right), torch.tensor(held_out.stats.samples, device=right[0].device)])
    torch.distributed.all_reduce(counts)
    share = (counts[0] / counts[1]).item()
    with tempfile.TemporaryDirectory() as folder:  # `loader.load_state_dict` goes on from there
        torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, f"{folder}/state.pt")
        world = ray.train.get_context().get_world_size()
        metrics = {"accuracy": share, "batches": loader.stats.batches, "world": world}
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


def main(path: str, folder: str) -> None:
    """Two workers."""
    train, test = parts(path)
    loaders = {"train": gdsload.DataLoader(train, 32, shuffle=True), "test": gdsload.DataLoader(test, 256)}
    options = {
        "scaling_config": ScalingConfig(num_workers=2, use_gpu=torch.cuda.is_available()),
        "run_config": RunConfig(storage_path=folder),
    }
    metrics = TorchTrainer(work, train_loop_config=loaders, **options).fit().metrics
    print(f"accuracy {metrics['accuracy']:.3f}, {metrics['batches']} batches on {metrics['world']} workers")


if __name__ == "__main__":
    main(*sys.argv[1:])
