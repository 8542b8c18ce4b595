"""The lowest versions that pyproject.toml claims are the ones that `make bounds` tests."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
# What users install, and can be tested without a GPU. The cuda extras are for `make test-gpu`.
OF_EXTRAS = [one for name in ("audio", "cli", "convert", "demo") for one in EXTRAS[name]]
USERS = [Requirement(text) for text in (*PROJECT["dependencies"], *OF_EXTRAS)]


def lowest(requirement: Requirement) -> Version | None:
    bounds = [Version(one.version) for one in requirement.specifier if one.operator == ">="]
    return max(bounds, default=None)


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines()
    found = [line.partition("==") for line in lines if line and not line.startswith("#")]
    return {name: Version(version) for name, _, version in found}


@pytest.mark.parametrize("requirement", [*USERS, *map(Requirement, EXTRAS["test"])], ids=str)
def test_the_lowest_version_is_the_one_that_is_tested(requirement):
    if requirement.name == PROJECT["name"]:
        assert requirement.extras == {"audio", "cli", "convert", "demo", "images"}
    elif (bound := lowest(requirement)) is not None:
        assert pins()[requirement.name] == bound
    else:
        assert requirement not in USERS, "what users install has a lowest version"
        assert requirement.name in pins()
