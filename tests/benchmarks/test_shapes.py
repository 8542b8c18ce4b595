"""Samples of many shapes: what a case loads is compared before it is measured."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu import shapes


@pytest.mark.parametrize("name", ["tokens-offsets", "tokens-padded", "tokens-jagged", "two-fields", "rows-4k-windows"])
def test_a_wrong_byte_is_noticed(tmp_path, monkeypatch, name):
    (case,) = (case for case in shapes.CASES if case.name == name)
    shapes.KINDS[case.kind].write(tmp_path / case.kind, 2**18)
    shapes.compare(case, tmp_path, torch.device("cpu"))

    def spoiled(batch):
        values = batch["x"][0] if isinstance(batch["x"], tuple) else batch["x"]
        values = values.values() if values.is_nested else values
        values.view(torch.uint8).view(-1)[0] ^= 1
        return batch

    real = shapes.Case.open
    monkeypatch.setattr(shapes.Case, "open", lambda *args, **more: real(*args, device_transform=spoiled, **more))
    with pytest.raises(RuntimeError, match=f"{name}: a batch is not what the files hold"):
        shapes.compare(case, tmp_path, torch.device("cpu"))
