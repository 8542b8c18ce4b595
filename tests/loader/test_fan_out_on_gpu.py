"""Peers on two GPUs, NCCL, that read a part of each batch each, beside the CPU that reads all of it."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback

import pytest
import torch

import gdsload
from gdsload.loader.peer_check import batch_digest

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(200)]

CASES = {
    "order": {}, "full": {"shuffle": "full"}, "block": {"shuffle": "block", "block": 8, "window": 32, "lanes": 2},
    "index": {"shuffle": "full", "with_index": True}, "bounce": {"shuffle": "full", "backend": "bounce"},
    "padded": {"ragged": "padded"}, "varlen": {"ragged": "varlen", "shuffle": "full"},
    "narrow": {"fields": ["label", "odd"], "shuffle": "full", "check_peers": True},
}  # fmt: skip


def _digests(loader, epochs=2):
    def on_cpu(value):
        if isinstance(value, torch.Tensor):
            return value.cpu()
        if isinstance(value, tuple):
            parts = [on_cpu(part) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        return value

    found = []
    for _ in range(epochs):
        for batch in loader:
            digest = batch_digest({name: on_cpu(value) for name, value in batch.items()})
            found += [digest, loader.state_dict()]
    loader.close()
    return found


def _peer(rank, port, varied, numbered, pipe):
    try:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank), "WORLD_SIZE": "2"}
        torch.cuda.set_device(rank)
        torch.distributed.init_process_group("nccl")
        mesh = torch.distributed.init_device_mesh("cuda", (2,), mesh_dim_names=("tp",))
        found = {}
        for name, options in CASES.items():
            shared = gdsload.DataLoader(varied, 26, device=f"cuda:{rank}", mesh=mesh, fan_out=True, **options)
            plain = {key: value for key, value in options.items() if key not in ("backend", "check_peers")}
            found[name] = _digests(shared) == _digests(
                gdsload.DataLoader(varied, 26, device="cpu", rank=0, world_size=1, **plain)
            )
        # Three epochs: until the shards are registered, and out of there.
        for size in (256, 255):
            shared = gdsload.DataLoader(numbered, size, "full", device=f"cuda:{rank}", mesh=mesh, fan_out=True)
            alone = gdsload.DataLoader(numbered, size, "full", device="cpu", rank=0, world_size=1)
            found[f"numbered, {size}"] = _digests(shared, 3) == _digests(alone, 3)
        pipe.send(found)
        pipe.recv()
        torch.distributed.destroy_process_group()
    except Exception:
        pipe.send({traceback.format_exc(): False})


def test_batches_are_those_of_one_who_reads_all(two_gpus, varied, numbered):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(2)]
    peers = [
        context.Process(target=_peer, args=(rank, port, str(varied), str(numbered), there), daemon=True)
        for rank, (_, there) in enumerate(pipes)
    ]
    for peer in peers:
        peer.start()
    try:
        for here, _ in pipes:
            assert here.poll(170), "a peer does not answer"
            assert {name for name, same in here.recv().items() if not same} == set()
        for here, _ in pipes:
            here.send(None)
        for peer in peers:
            peer.join(20)
    finally:
        for peer in peers:
            peer.kill()
