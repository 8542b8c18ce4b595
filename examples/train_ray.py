"""Ray Train: the workers get the loader, without `prepare_data_loader`.

usage: gdsload demo --keep digits/ && python examples/train_ray.py "$PWD/digits/" /shared/runs/
"""

import sys
import tempfile

import ray.train
import torch
from digits_model import accuracy, adam, network, parts, train
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

import gdsload


def work(config: dict[str, object]) -> None:
    """Train in a worker; the loader was pickled, and finds its rank and device here."""
    model, loader = prepare_model(network()), config["loader"]
    optimiser = adam(model)
    for _ in range(10):
        train(model, optimiser, loader)
    metrics = {"accuracy": accuracy(model, config["path"]), "batches": loader.stats.batches}
    with tempfile.TemporaryDirectory() as folder:  # `loader.load_state_dict` goes on from there
        torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, f"{folder}/state.pt")
        ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))


def main(path: str, folder: str) -> None:
    """Start two workers. Ray needs absolute paths."""
    config = {"loader": gdsload.DataLoader(parts(path)[0], 32, shuffle=True), "path": path}
    scaling = ScalingConfig(num_workers=2, use_gpu=torch.cuda.is_available())
    run = RunConfig(storage_path=folder)
    done = TorchTrainer(work, train_loop_config=config, scaling_config=scaling, run_config=run).fit()
    print("accuracy {accuracy:.3f} of worker 0's digits, {batches} batches".format(**done.metrics))


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else sys.exit(__doc__)
