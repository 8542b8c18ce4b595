"""Checks of cuFile: the library, its driver, its configuration, and its actual paths."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from gdsload.system.probe.library import find_libraries
from gdsload.tools.doctor.context import Context, on_each
from gdsload.tools.doctor.finding import Finding, clip, info, ok, unknown, warning

_REMEDIES = {
    "HANDLE_NOT_REGISTERED": "Most often the udev record is missing: see cufile.udev.",
    "INTERNAL_ERROR": "The file system is none that cuFile knows: see storage.filesystem.",
    "DRIVER_NOT_INITIALIZED": "Load nvidia-fs (sudo modprobe nvidia-fs), or set up P2PDMA.",
    "IO_NOT_SUPPORTED": "cuFile's log says why; see storage.filesystem and the p2p conditions.",
    "GPU_MEMORY_PINNING_FAILED": "Free BAR1 memory: nvidia-smi -q -d MEMORY shows who has it.",
}


def _trouble(context: Context, message: str, remedy: str, **evidence: Any) -> Finding:
    """A warning if there is a GPU; without one it does not matter."""
    return warning(message, remedy, **evidence) if context.has_gpu else info(message, **evidence)


def library(context: Context) -> Finding:
    """The libcufile that is loaded or installed."""
    system = context.system
    found = find_libraries(system.tree, system.environ, system.site_folders)
    evidence: dict[str, Any] = {"libraries": [{"path": item.path, "version": item.version} for item in found]}
    if context.probe is not None and context.probe.library:
        evidence |= {"loaded": context.probe.library, "version": context.probe.version}
        return ok(f"libcufile {clip(context.probe.version)}: {clip(context.probe.library)}", **evidence)
    if found:
        return ok(f"libcufile {found[0].version or '(version unknown)'}: {clip(found[0].path)}", **evidence)
    return _trouble(context, "there is no libcufile", 'Install it: pip install "gdsload[cu13]" or [cu12].', **evidence)


def probe(context: Context) -> Finding:
    """The result of cuFile's read of a file at the path, by its own counters."""
    found = context.probe
    if found is None:
        return unknown("cuFile was not asked", "Run the doctor without --no-probe.", status="skipped", proven=False)
    evidence: dict[str, Any] = {**dataclasses.asdict(found), "proven": found.proven, "path": found.path}
    if found.proven:
        return ok(f"cuFile read {found.read_bytes} bytes by DMA ({found.path}), by its own counters", **evidence)
    if found.status == "ok" and found.path == "unknown":
        return _trouble(
            context,
            "cuFile reads, but by which path is unknown: its counters cannot be read",
            'Install cuda-bindings: pip install "gdsload[cu13]" or [cu12].',
            **evidence,
        )
    if found.status == "ok":
        return _trouble(
            context,
            f"cuFile reads through the CPU here ({found.path}: {found.posix_reads} reads), not by DMA",
            "Load nvidia-fs, or fulfil the p2p conditions below; the file system must be one that cuFile supports. "
            "gdscheck -p of the CUDA toolkit shows whether the IOMMU or BAR1 prevents DMA.",
            **evidence,
        )
    if found.status in ("missing", "skipped"):
        return info(f"cuFile could not be asked: {clip(found.reason, 200)}", **evidence)
    message = f"cuFile was asked ({found.status}): {clip(found.reason, 200)}"
    remedy = _REMEDIES.get(found.error, "See the evidence (--json) for cuFile's own log.")
    if found.status == "timeout" and found.stage == "driver-open" and not context.system.tree.exists("/proc/modules"):
        # Without /proc/modules (gVisor, kernels without modules) 1.19 and 1.20 were seen to spin in cuFileDriverOpen.
        remedy = "Use an older libcufile (1.15 opens where there is no /proc/modules), or a kernel with modules."
    return _trouble(context, message, remedy, **evidence)


def nvidia_fs(context: Context) -> Finding:
    """The nvidia-fs kernel module, which is one of the two ways of DMA."""
    tree, folder = context.system.tree, "/proc/driver/nvidia-fs"
    version = (tree.text(f"{folder}/version") or "").rpartition(":")[2].strip()
    evidence: dict[str, Any] = {
        "loaded": context.nvfs, "version": clip(version), "devices": tree.number(f"{folder}/devcount"),
        "nodes": tree.exists("/dev/nvidia-fs0"),
    }  # fmt: skip
    if context.nvfs:
        if not evidence["nodes"]:
            return _trouble(
                context,
                f"nvidia-fs {clip(version)} is loaded, but there is no /dev/nvidia-fs0 here",
                "In a container: start it with NVIDIA_GDS=enabled, or pass --device /dev/nvidia-fs0 and its siblings.",
                **evidence,
            )
        return ok(f"nvidia-fs {clip(version)} is loaded", **evidence)
    return info("nvidia-fs is not loaded; DMA then needs all p2p conditions below", **evidence)


def config(context: Context) -> Finding:
    """The configuration that cuFile reads."""
    found, environ = context.config, context.system.environ
    properties = found.values.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    wanted = ("allow_compat_mode", "force_compat_mode", "use_pci_p2pdma")
    settings = {name: properties[name] for name in wanted if isinstance(properties.get(name), bool)}
    evidence: dict[str, Any] = {"file": found.path, "exists": found.text is not None, "properties": settings}
    if found.error:
        return _trouble(context, f"{clip(found.path)} is no valid JSON: {clip(found.error)}", "Mend it.", **evidence)
    if found.text is None and "CUFILE_ENV_PATH_JSON" in environ:
        remedy = "Name an existing file, or unset CUFILE_ENV_PATH_JSON."
        return _trouble(
            context,
            f"CUFILE_ENV_PATH_JSON names {clip(found.path)}, which cannot be read",
            remedy,
            **evidence,
        )
    forced = environ.get("CUFILE_FORCE_COMPAT_MODE", "").lower() in ("1", "true")
    if settings.get("force_compat_mode") or forced:
        return _trouble(context, "cuFile's compat mode is forced: no DMA", "Take force_compat_mode out.", **evidence)
    if found.text is None:
        return ok(
            "there is no cufile.json, so cuFile uses its defaults (compat mode allowed, no P2PDMA)",
            **evidence,
        )
    return ok(f"{clip(found.path)}: {json.dumps(settings)}", **evidence)


def udev(context: Context) -> Finding:
    """The udev record of the block device, which cuFile needs in order to register a file."""
    tree, mount = context.system.tree, context.place.mount
    if mount is None or not context.place.stack:
        return info("no block device, so no udev record to look for", path="", exists=None)
    number = context.place.stack[0].number or mount.number
    path = f"/run/udev/data/b{number}"
    record = tree.text(path)
    evidence: dict[str, Any] = {
        "path": path,
        "exists": record is not None,
        "device": context.place.stack[0].name,
    }
    usage = next((line[15:] for line in (record or "").splitlines() if line.startswith("E:ID_FS_USAGE=")), None)
    usage = None if usage is None else clip(usage)
    evidence["ID_FS_USAGE"] = usage
    if usage is not None:
        return ok(f"{path} says ID_FS_USAGE", **evidence)
    line = f'printf "E:ID_FS_TYPE={clip(mount.kind, 20)}\\nE:ID_FS_USAGE=filesystem\\n" > {path}'
    by_hand = f"mkdir -p /run/udev/data && {line}"
    if not tree.exists("/run/udev"):
        message = "/run/udev is missing, so cuFile cannot register files (HANDLE_NOT_REGISTERED)"
        remedy = f"Start the container with -v /run/udev:/run/udev:ro. Where that is impossible, as root: {by_hand}"
    else:
        message = f"{path} " + ("has no ID_FS_USAGE" if record is not None else "is missing")
        message += ", so cuFile cannot register files (HANDLE_NOT_REGISTERED)"
        name = context.place.stack[0].name
        remedy = f"sudo udevadm trigger --action=change /dev/{name}; where there is no udev, as root: {by_hand}"
    return _trouble(context, message, remedy, **evidence)


CHECKS = (
    ("cufile.library", library),
    ("cufile.probe", probe),
    ("cufile.nvidia-fs", nvidia_fs),
    ("cufile.config", config),
    ("cufile.udev", on_each(udev)),
)
