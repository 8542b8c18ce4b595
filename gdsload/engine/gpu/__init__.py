"""Batches that the GPU makes by itself: its kernels, and the code that launches them."""
