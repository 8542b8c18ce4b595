"""Loaders of a hundred numbers, and the numbers of their batches."""

import gdsload

SAMPLES, BATCH, STEPS = 100, 8, 13


def load(path, **options):
    return gdsload.DataLoader(path, **{"batch_size": BATCH, "shuffle": True, "device": "cpu"} | options)


def numbers(batches):
    return [batch["x"].flatten().int().tolist() for batch in batches]
