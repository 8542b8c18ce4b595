"""Bytes to header and back: the shard format, without I/O and without torch.

The normative text of the format is docs/spec/shard-v1.md.
"""
