"""A dataset of a hundred numbers, loaders of it, and the numbers of their batches."""

import torch

import gdsload

SAMPLES, BATCH, STEPS = 100, 8, 13


def write(path, samples=SAMPLES):
    with gdsload.ShardWriter(path, shard_bytes="256B") as writer:
        writer.write_batch({"x": torch.arange(samples, dtype=torch.float32)[:, None]})
    return path


def load(path, **options):
    return gdsload.DataLoader(path, **{"batch_size": BATCH, "shuffle": True, "device": "cpu"} | options)


def numbers(batches):
    return [batch["x"].flatten().int().tolist() for batch in batches]
