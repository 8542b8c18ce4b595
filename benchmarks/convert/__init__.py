"""Benchmark of conversions to shards, beside a plain copy and peers' conversions of the same samples."""
