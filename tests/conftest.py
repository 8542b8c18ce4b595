"""What all tests share: what they run on, and which of them need a GPU."""

from __future__ import annotations

import os
import platform

import numpy as np
import pytest
import torch

from gdsload.version import __version__

NEEDS = "GDSLOAD_REQUIRE"


@pytest.fixture(autouse=True, scope="session")
def _no_tuned_settings(tmp_path_factory):
    """What whoever runs the tests has tuned must not count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


def pytest_report_header() -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return (
        f"gdsload {__version__}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, numpy {np.__version__}, CUDA device: {device}, {NEEDS}={os.environ.get(NEEDS, '')}"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is None or torch.cuda.is_available():
        return
    if "cuda" in os.environ.get(NEEDS, "").split(","):
        pytest.fail(f"{NEEDS}=cuda, but torch sees no CUDA device", pytrace=False)
    pytest.skip("needs an NVIDIA GPU")
