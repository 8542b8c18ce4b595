"""Stand-ins for streams, where tensors of a GPU are in memory of the host."""

from __future__ import annotations

from contextlib import nullcontext

import torch

from gdsload.engine.gpu import shared_tensors


def tensors_on_host(monkeypatch):
    """Have tensors that kernels of any stream read stay where they are."""
    monkeypatch.setattr(shared_tensors, "side_stream", lambda _device: object())
    monkeypatch.setattr(shared_tensors, "on", nullcontext)
    monkeypatch.setattr(shared_tensors, "stream_handle", lambda _device: 0)
    monkeypatch.setattr(shared_tensors, "current_stream", lambda _device: None)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda _tensor, _stream: None)
