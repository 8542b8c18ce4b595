"""Samplers of the user's: torch's, any iterable of indices or of batches of them, or indices in a tensor."""
