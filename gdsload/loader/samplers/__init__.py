"""Samplers of the user's: torch's, any iterable of indices or of batches of them, or indices in a tensor."""

from gdsload.loader.samplers.draws import Draws
from gdsload.loader.samplers.function import IndexFunction
from gdsload.loader.samplers.indices import IndexSource
from gdsload.loader.samplers.planned import PlannedSampler
from gdsload.loader.samplers.sampled import Sampled, expected_batch, index_source

__all__ = [
    "Draws",
    "IndexFunction",
    "IndexSource",
    "PlannedSampler",
    "Sampled",
    "expected_batch",
    "index_source",
]
