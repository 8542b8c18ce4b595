"""Batches that are made on a GPU: the maker of batches, decoded images, queues and streams."""
