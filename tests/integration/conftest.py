"""Tests with packages that the core does not need: `make integration` has an environment with them."""

import os

if os.environ.get("GDSLOAD_SUITE") != "integration":
    collect_ignore_glob = ["test_*.py"]
