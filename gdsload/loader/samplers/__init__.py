"""Samplers of the user's: torch's, any iterable of indices or of batches of them, or indices in a tensor."""

from gdsload.loader.samplers.draws import Draws
from gdsload.loader.samplers.sampled import Sampled, SampledSchedule, expected_batch, sampled_by

__all__ = ["Draws", "Sampled", "SampledSchedule", "expected_batch", "sampled_by"]
