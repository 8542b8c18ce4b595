"""CUDA kernels, and the functions that launch them: gathers, the ids of an order, checksums, transforms."""
