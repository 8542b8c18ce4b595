"""Batches taken of loaders, as many tests do it."""

import pytest
import torch
from hypothesis import HealthCheck, settings

import gdsload
from gdsload import StateError
from gdsload.testing import fingerprint

BLOCK = {"shuffle": gdsload.BlockShuffle(block=8, window=40, lanes=3)}
ORDERS = [{"shuffle": False}, {"shuffle": "full"}, BLOCK]
EXAMPLES = settings(max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def raw_bytes(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def noisy_sample(sample, generator):
    """The sample with random numbers of the generator that is given, and of torch's."""
    return {**sample, "own": torch.rand((), generator=generator), "torch": torch.empty(2).uniform_(3, 4)}


def noisy_batch(batch, generator):
    """The batch with a random number for each of its samples."""
    return {**batch, "own": torch.rand(len(batch["x"]), generator=generator)}


def prints(batches):
    """The fingerprint of each batch."""
    return [fingerprint(batch) for batch in batches]


def begin(loader, batches=1):
    """Begin an epoch: its iterator, after so many of its batches."""
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return iterator


def numbers(batches):
    """The indices of the samples of each batch, of loaders `with_index`."""
    return [batch["index"].tolist() for batch in batches]


def firsts(batches):
    """The first value of field x of each sample, of each batch."""
    return [batch["x"][:, 0].tolist() for batch in batches]


def collect(iterator):
    """The indices of the samples of each batch until an error, and that error."""
    found = []
    try:
        found.extend(batch["index"].tolist() for batch in iterator)
    except (Exception, SystemExit) as error:
        return found, error
    return found, None


def check_refused(loader, state, match, **options):
    """Check that a loader refuses a state, and stays where it is."""
    before = loader.state_dict()
    with pytest.raises(StateError, match=match):
        loader.load_state_dict(state, **options)
    assert loader.state_dict() == before
