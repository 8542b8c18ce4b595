import torch
from accelerate import Accelerator

import gdsload


def test_prepare_passes_the_loader_through(tmp_path):
    with gdsload.ShardWriter(tmp_path / "d") as writer:
        writer.write_batch({"x": torch.arange(100)})
    loader = gdsload.DataLoader(tmp_path / "d", 8, shuffle=True, device="cpu")
    accelerator = Accelerator(cpu=True)
    _, prepared = accelerator.prepare(torch.nn.Linear(1, 1), loader)
    assert prepared is loader
    seen = [x for batch in prepared for x in batch["x"].tolist()]
    assert sorted(seen) == list(range(100))
    assert next(iter(prepared))["x"].tolist() != seen[:8]
