"""docs/licences.md has all that users install; whether the licences are right is for `make sbom`, with the network."""

import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tools.sbom import ALONE, EXTRAS, licence, required_by

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DEVELOPERS = {"test", "docs", "lint", "integration", "vision", "cluster", "fuzz", "bench"}


def rows():
    """The licence of each package."""
    lines = (ROOT / "docs/licences.md").read_text(encoding="utf-8").partition("|---|")[2].splitlines()[1:]
    return dict(line.strip("| ").split(" | ")[:2] for line in lines)


def package(requires):
    return {"metadata": {"requires_dist": requires}}


def own():
    extras = PROJECT["optional-dependencies"].items()
    return package(
        [*PROJECT["dependencies"], *(f'{one}; extra == "{extra}"' for extra, some in extras for one in some)]
    )


def installed():
    """The packages that are here in the versions of constraints.txt: others may require something else."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    here = {canonicalize_name(one.name): one for one in distributions()}
    return {
        name: package(one.requires or [])
        for name, one in here.items()
        if one.version.partition("+")[0] == pins.get(name)
    }


def test_no_dependency_is_missing_from_the_table():
    wanted = required_by(installed() | {"gdsload": own()}, [*EXTRAS, ALONE])
    assert set(wanted) - set(rows()) == set()
    assert {"numpy", "kvikio-cu12", "soundfile"} <= set(wanted)


def test_the_libraries_of_cuda_are_in_the_table_as_proprietary():
    """As they are for users: where only builds of torch for CPUs are offered, none is found."""
    assert rows()["nvidia-cufile"] == "LicenseRef-NVIDIA-Proprietary"


def test_each_extra_is_in_the_sbom_or_for_developers():
    assert {*EXTRAS, ALONE} == PROJECT["optional-dependencies"].keys() - DEVELOPERS


def test_packages_are_required_by_those_whose_markers_say_so():
    found = {
        "gdsload": package(["a[fast]", 'b; extra == "x"', 'c; extra == "y"', 'gdsload[y]; extra == "z"']),
        "a": package(['D_e; extra == "fast"', 'f; extra == "slow"', 'g; python_version < "3"']),
    }
    x = {"a": {"gdsload"}, "d-e": {"a"}, "b": {"gdsload[x]"}}
    assert required_by(found, ["x"]) == x
    assert required_by(found, ["z"]) == {"a": {"gdsload"}, "d-e": {"a"}, "c": {"gdsload[y]"}}


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        ({"license_expression": "MIT AND Zlib", "license": "MIT"}, "MIT AND Zlib"),
        ({"license": "mit"}, "MIT"),
        ({"license": "BSD", "classifier": ["License :: OSI Approved :: BSD License"]}, "BSD License"),
        ({"license": "Copyright (c) 2001\nAll rights", "classifier": ["Topic :: Software"]}, "Copyright (c) 2001"),
        ({"name": "TorchCodec"}, "BSD-3-Clause"),
        ({"name": "other"}, "not stated"),
    ],
)
def test_the_stated_licence(metadata, found):
    assert licence({"name": "some"} | metadata) == found
