"""Measurements of the loader beside its peers: programs, no part of the package. Run them from the repository root."""
