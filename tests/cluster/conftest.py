"""Tests on clusters of two workers: `make cluster` has an environment with Dask and Ray."""

import os

if os.environ.get("GDSLOAD_SUITE") != "cluster":
    collect_ignore_glob = ["test_*.py"]
