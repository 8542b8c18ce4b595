"""The shard format: headers from bytes and bytes from headers, without I/O and without torch.

The normative texts of the format are docs/spec/shard-v1.md, shard-v2.md and shard-v3.md.
"""
