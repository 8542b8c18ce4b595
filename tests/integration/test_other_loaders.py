"""Frameworks that take torch's loaders alone, or make others of them: what `docs/frameworks` says of them holds."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from lightning_fabric import Fabric
from ray.train.torch import train_loop_utils
from torchdata.nodes import IterableWrapper, Loader

from gdsload import OptionError
from tests.integration.loading import load, numbers


def begun(path, batches):
    """A loader of which some batches are out, and those that come after them."""
    loader = load(path)
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return loader, iterator


def test_fabric_wants_torchs_loaders_and_saves_ours(path, tmp_path):
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    loader, rest = begun(path, 5)
    with pytest.raises(TypeError, match="Only PyTorch DataLoader are currently supported"):
        fabric.setup_dataloaders(loader)
    fabric.save(tmp_path / "fabric.ckpt", {"loader": loader})
    other = load(path)
    fabric.load(tmp_path / "fabric.ckpt", {"loader": other})
    assert numbers(other) == numbers(rest)


def test_ray_makes_a_loader_of_torchs_which_says_so(path, monkeypatch):
    monkeypatch.setattr(train_loop_utils.session, "get_world_size", lambda: 2)
    monkeypatch.setattr(train_loop_utils.session, "get_world_rank", lambda: 0)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        prepared = train_loop_utils._TorchAccelerator().prepare_data_loader(load(path), move_to_device=False)
        with pytest.raises(OptionError, match="a loader of torch's from a gdsload.DataLoader"):
            next(iter(prepared))
    finally:
        torch.distributed.destroy_process_group()


def test_nodes_of_torchdata_have_the_loaders_state(path):
    nodes, other = (Loader(IterableWrapper(load(path))) for _ in range(2))
    iterator = iter(nodes)
    for _ in range(5):
        next(iterator)
    other.load_state_dict(nodes.state_dict())
    assert numbers(other) == numbers(iterator)


def test_distributed_checkpoints_have_the_loaders_state(path, tmp_path):
    loader, rest = begun(path, 5)
    other = load(path)
    dcp.save({"loader": loader}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    dcp.load({"loader": other}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert numbers(other) == numbers(rest)
