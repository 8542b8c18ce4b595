"""Batches that the GPU makes by itself: its kernels, and who has them run."""
