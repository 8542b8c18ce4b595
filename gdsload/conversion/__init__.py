"""Datasets as they lie on people's disks, made into shards."""
