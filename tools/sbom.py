"""The packages that users install: their SBOM in CycloneDX's JSON, and the table in docs/licences.md. See `make sbom`.

pip resolves the extras without installing them: those for CUDA are gigabytes, and two of them exclude each other. That
for CUDA 12 is resolved without torch, whose builds for it PyPI does not have.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "licences.md"
EXTRAS = ("audio", "cli", "convert", "cu13", "demo", "images", "images-cuda")
ALONE = "cu12"
MARK = "<!-- make sbom -->\n"
NONE = "not stated"
READ = {"torchcodec": "BSD-3-Clause"}
"""Licences that metadata do not state, as read in the packages' own files."""

Metadata = dict[str, Any]
"""The core metadata of a package, as JSON."""
Packages = dict[str, dict[str, Any]]
"""The entries of pip's report, by the name of the package."""
Resolved = list[tuple[Packages, dict[str, set[str]]]]
"""Packages that are installed together, and for each those that require it."""


def resolve(*what: str) -> Packages:
    """The packages that pip would install, by name, in the versions that CI tests."""
    options = ["--dry-run", "--ignore-installed", "--quiet", "--report", "-", "-c", str(ROOT / "constraints.txt")]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, *what], stdout=subprocess.PIPE, check=True, text=True
    )
    return {str(canonicalize_name(one["metadata"]["name"])): one for one in json.loads(done.stdout)["install"]}


def licence(metadata: Metadata) -> str:
    """The licence that a package states: an SPDX expression if it has one, else in its own words."""
    stated = metadata.get("license_expression") or metadata.get("license") or ""
    try:
        return canonicalize_license_expression(stated)
    except InvalidLicenseExpression:
        pass
    classes = [one for one in metadata.get("classifier", ()) if one.startswith("License ::")]
    words = ", ".join(one.rpartition(" :: ")[2] for one in classes)
    return words or stated.partition("\n")[0] or READ.get(canonicalize_name(metadata["name"]), NONE)


def needs(metadata: Metadata, extra: str) -> Iterator[Requirement]:
    """The requirements of an extra here, without those of the package itself; the latter if `extra` is empty."""
    for one in map(Requirement, metadata.get("requires_dist", ())):
        anyway, with_extra = (one.marker is None or one.marker.evaluate({"extra": name}) for name in ("", extra))
        if with_extra and not (extra and anyway):
            yield one


def required_by(found: Packages, extras: Iterable[str]) -> dict[str, set[str]]:
    """For each package the names of those that require it; gdsload's is with the extra, as in "gdsload[audio]"."""
    users, seen = defaultdict[str, set[str]](set), set[tuple[str, str]]()
    todo = [("gdsload", extra) for extra in ("", *extras)]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen or name not in found:
            continue
        seen.add((name, extra))
        for one in needs(found[name]["metadata"], extra):
            other = str(canonicalize_name(one.name))
            if other != name:
                users[other].add(f"{name}[{extra}]" if extra and name == "gdsload" else name)
            todo += [(other, wanted) for wanted in ("", *one.extras)]
    return users


def sbom(resolved: Resolved) -> str:
    """The document, in version 1.6 of CycloneDX. A package that has two versions is in it twice."""
    from cyclonedx.model.bom import Bom
    from cyclonedx.output.json import JsonV1Dot6

    bom, made = Bom(), dict[tuple[str, str], Any]()
    for packages, users in resolved:
        here = {name: made.setdefault((name, _version(one)), component(name, one)) for name, one in packages.items()}
        for name, some in users.items():
            for user in {one.partition("[")[0] for one in some}:
                if name in here:
                    bom.register_dependency(here[user], [here[name]])
    bom.metadata.component = made.pop(("gdsload", _version(resolved[0][0]["gdsload"])))
    bom.components.update(made.values())
    return str(JsonV1Dot6(bom).output_as_string(indent=2))


def component(name: str, package: dict[str, Any]) -> Any:
    """A package as CycloneDX has it."""
    from cyclonedx.contrib.hash.factories import HashTypeFactory
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    metadata, stated = package["metadata"], licence(package["metadata"])
    hashes = package["download_info"].get("archive_info", {}).get("hashes", {})
    return Component(
        name=name,
        version=_version(package),
        type=ComponentType.LIBRARY,
        bom_ref=f"{name}=={_version(package)}",
        purl=PackageURL("pypi", None, name, _version(package)),
        description=metadata.get("summary"),
        licenses=[] if stated == NONE else [LicenseFactory().make_from_string(stated)],
        hashes=[HashTypeFactory().from_hashlib_alg(kind, value) for kind, value in hashes.items()],
    )


def _version(package: dict[str, Any]) -> str:
    return str(package["metadata"]["version"])


def table(resolved: Resolved) -> str:
    """The rows of the page: each package once, whatever its version."""
    stated = {name: licence(one["metadata"]) for packages, _ in reversed(resolved) for name, one in packages.items()}
    del stated["gdsload"]
    why = {name: sorted(set[str]().union(*(users.get(name, ()) for _, users in resolved))) for name in stated}
    rows = [f"| {name} | {stated[name]} | {', '.join(why[name])} |" for name in sorted(stated)]
    return "\n".join(["| package | licence | required by |", "|---|---|---|", *rows])


def main() -> None:
    """Write both; see `--help`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the SBOM, a new file")
    out = parser.parse_args().out
    found = resolve(f"{ROOT}[{','.join(EXTRAS)}]")
    if "nvidia-cufile" not in found:
        raise SystemExit("pip was offered a torch without CUDA: have it use the index that users have")
    own = {"gdsload": found["gdsload"]}
    alone = own | resolve(*(f"{one.name}{one.specifier}" for one in needs(own["gdsload"]["metadata"], ALONE)))
    resolved = [(found, required_by(found, EXTRAS)), (alone, required_by(alone, [ALONE]))]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(sbom(resolved) + "\n", encoding="utf-8")
    before, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    PAGE.write_text(before + mark + table(resolved) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
