"""Datasets as they are on people's disks, made into shards."""
