"""Checks of cuFile: the library, its configuration, and its actual paths."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from gdsload.tools.doctor.block import Volume
from gdsload.tools.doctor.context import Context, on_each, trouble
from gdsload.tools.doctor.finding import Finding, Fix, clip, info, ok, quoted, unknown
from gdsload.tools.doctor.package_checks import extra

_LIBRARIES = ("libudev.so.1", "libmount.so.1")
"""Libraries that cuFile loads itself, without an error if one is missing."""
_UDEV = (
    "# docker run -v /run/udev:/run/udev:ro ...",
    "# Kubernetes: volumes: [{name: udev, hostPath: {path: /run/udev}}]",
    "#   and volumeMounts: [{name: udev, mountPath: /run/udev, readOnly: true}]",
    "# apptainer run --nv --bind /run/udev:/run/udev:ro ...",
)
_UNREAD_FROM = (1, 17)
"""The first libcufile without CUFILE_ALLOW_COMPAT_MODE: 1.13 to 1.16 have the word in them, 1.17 to 1.20 do not."""


def library(context: Context) -> Finding:
    """The libcufile that the trial read has loaded."""
    found = context.probe
    if found.library:
        return ok(f"libcufile {clip(found.version)}: {clip(found.library)}")
    if found.status == "missing":
        return trouble(context, "libcufile cannot be loaded: see cufile.probe", extra(context))
    return info("libcufile was not loaded, since no trial read was made")


def system_libraries(context: Context) -> Finding:
    """The libraries that cuFile loads when it opens: without them it does not know drives and mounts."""
    missing = [name for name in _LIBRARIES if not context.system.calls.can_load(name)]
    if not missing:
        return ok(f"{' and '.join(_LIBRARIES)} are installed")
    install = "apt-get install -y libudev1 libmount1 || dnf install -y systemd-libs libmount"
    fix = Fix("Install libudev and libmount", "root", "", (f"sudo sh -c '{install}'",))
    if context.container:
        fix = Fix("Add libudev and libmount to the image", "container", "a new image", (f"# RUN {install}",))
    return trouble(context, f"cuFile needs {' and '.join(missing)} to recognise drives", fix)


def probe(context: Context) -> Finding:
    """The result of cuFile's read of a file at the path, by its own counters."""
    found = context.probe
    evidence: dict[str, Any] = {**dataclasses.asdict(found), "proven": found.proven, "path": found.path}
    if found.proven:
        return ok(f"cuFile read {found.read_bytes} bytes by DMA ({found.path}), by its own counters", **evidence)
    if found.status == "ok" and found.path == "unknown":
        message = "cuFile reads by an unknown path, because its counters cannot be read"
        return trouble(context, message, extra(context), **evidence)
    if found.status == "ok":
        message = f"cuFile reads through the CPU here ({found.path}), not by DMA"
        fix = "Set up one of the two ways. `gdscheck -p` of the CUDA toolkit shows whether the IOMMU prevents DMA"
        return trouble(context, message, fix, **evidence)
    if found.status == "missing":
        return info(f"cuFile cannot be used: {clip(found.reason, 200)}", **evidence)
    if found.status == "skipped":
        bug = context.bug
        fix = "Pass --probe to make the trial read nevertheless" if bug and bug.hangs else ""
        skipped = unknown if context.has_gpu else info
        return skipped(f"no trial read with cuFile: {clip(found.reason, 300)}", fix, **evidence)
    ended = "cuFile crashed: " if found.status == "crashed" else "cuFile: "
    fix = "See the other warnings; cuFile's own log is in the evidence (--json)"
    if found.error == "GPU_MEMORY_PINNING_FAILED":
        fix = "Free BAR1 memory: nvidia-smi -q -d MEMORY shows how much is used"
    if found.status == "timeout" and found.stage == "driver-open" and not context.system.tree.exists("/proc/modules"):
        # Without /proc/modules (gVisor, kernels without modules), 1.19 and 1.20 loop forever in cuFileDriverOpen.
        fix = "Use an older libcufile (1.15 opens without /proc/modules), or a kernel with modules"
    return trouble(context, f"{ended}{clip(found.reason, 200)}", fix, **evidence)


def config(context: Context) -> Finding:
    """The configuration that cuFile reads."""
    found, environ = context.config, context.system.environ
    wanted = ("allow_compat_mode", "force_compat_mode", "use_pci_p2pdma")
    settings = {name: value for name in wanted if isinstance(value := found.properties.get(name), bool)}
    file = clip(found.path)
    if found.error:
        fix = Fix(f"Correct {file}", commands=(f"python3 -m json.tool {quoted(found.path)}",))
        return trouble(context, f"{file} is not valid JSON: {clip(found.error)}", fix)
    if found.text is None and "CUFILE_ENV_PATH_JSON" in environ:
        fix = Fix("Unset CUFILE_ENV_PATH_JSON, or name a file", commands=("unset CUFILE_ENV_PATH_JSON",))
        return trouble(context, f"CUFILE_ENV_PATH_JSON names {file}, which cannot be read", fix)
    if settings.get("force_compat_mode") or environ.get("CUFILE_FORCE_COMPAT_MODE", "").lower() in ("1", "true"):
        fix = Fix(f"Remove force_compat_mode from {file}", commands=("unset CUFILE_FORCE_COMPAT_MODE",))
        return trouble(context, "cuFile's compat mode is forced, so there is no DMA", fix)
    fabrics = [block.name for block in context.place.drives if block.transport not in ("pcie", "")]
    if fabrics and context.wants_p2p:
        fix = Fix(f"Set use_pci_p2pdma to false in {file}", commands=("unset CUFILE_USE_PCIP2PDMA",))
        message = f"use_pci_p2pdma is on: cuFile's reads of {fabrics[0]}, an NVMe-oF drive, fail with I/O errors"
        return trouble(context, message, fix)
    if found.text is None:
        return ok("there is no cufile.json, so cuFile uses its defaults (compat mode allowed, no P2PDMA)")
    return ok(f"{file}: {json.dumps(settings)}")


def variables(context: Context) -> Finding:
    """The environment variables of cuFile that are set, and one that only older versions read."""
    known = {name: clip(value) for name, value in context.system.environ.items() if name.startswith("CUFILE_")}
    named = ", ".join(f"{name}={value}" for name, value in sorted(known.items()))
    name, version = "CUFILE_ALLOW_COMPAT_MODE", re.match(r"(\d{1,3})\.(\d{1,3})", context.probe.version)
    if name not in known:
        return ok(named or "no environment variable of cuFile is set")
    if version is None:
        return info(f"{named}: only libcufile up to 1.16 reads {name}, and its version is not known")
    if (int(version[1]), int(version[2])) < _UNREAD_FROM:
        return ok(f"{named}: libcufile {version[0]} reads it")
    fix = Fix(f"Set allow_compat_mode in {clip(context.config.path)} instead", commands=(f"unset {name}",))
    return trouble(context, f"{name} is set, but libcufile {version[0]} no longer reads it (1.16 did)", fix)


def udev(context: Context, volume: Volume) -> Finding:
    """The udev record of the block device, which cuFile needs in order to register a file."""
    tree, mount = context.system.tree, volume.mount
    if mount is None or not volume.stack:
        return info("no block device, so no udev record to look for")
    block = volume.stack[0]
    path = f"/run/udev/data/b{block.number or mount.number}"
    record = tree.text(path)
    if any(line.startswith("E:ID_FS_USAGE=") for line in (record or "").splitlines()):
        return ok(f"{path} has ID_FS_USAGE")
    kind = re.sub(r"[^\w.-]", "", mount.kind[:20])  # goes into a shell's command
    line = f'printf "E:ID_FS_TYPE={kind}\\nE:ID_FS_USAGE=filesystem\\n" > {path}'
    by_hand = f"mkdir -p /run/udev/data && {line}"
    refuses = "so cuFile cannot register files (HANDLE_NOT_REGISTERED)"
    if tree.exists("/run/udev"):
        message = f"{path} {'has no ID_FS_USAGE' if record is not None else 'is missing'}, {refuses}"
        trigger = f"sudo udevadm trigger --action=change /dev/{block.name} || sudo sh -c '{by_hand}'"
        return trouble(context, message, Fix("Make udev rewrite the record", "root", "", (trigger,)))
    fix = Fix("Write the record by hand, since there is no udev here", "root", "", (f"sudo sh -c '{by_hand}'",))
    if context.container:
        lines = (*_UDEV, f"# or, as root in the container: {by_hand}")
        fix = Fix("Start the container with -v /run/udev:/run/udev:ro", "container", "a container restart", lines)
    return trouble(context, f"/run/udev is missing, {refuses}", fix)


CHECKS = (
    ("cufile.library", library),
    ("cufile.system-libraries", system_libraries),
    ("cufile.probe", probe),
    ("cufile.config", config),
    ("cufile.variables", variables),
    ("cufile.udev", on_each(udev)),
)
