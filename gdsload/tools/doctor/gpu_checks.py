"""Checks of the GPU, its driver, and what torch makes of them."""

from __future__ import annotations

import re
from typing import Any

from gdsload.system.units import format_bytes
from gdsload.tools.doctor.context import Context
from gdsload.tools.doctor.finding import Finding, clip, error, info, ok, unknown, warning

__all__ = ["CHECKS", "driver_version"]

_VERSION = re.compile(r"\b(\d{3,4}(?:\.\d+){1,2})\b")
_SMALL_BAR_BYTES = 2**30
"""GPUs without a large BAR1 have 256 MiB of it; those with one map all their memory (128 GiB on an H100)."""
_NOT_OURS = "gdsload's own slots are plain CUDA memory and are not concerned"


def driver_version(context: Context) -> tuple[str, bool]:
    """Version of the NVIDIA kernel driver (empty if there is none), and whether it is the open one.

    From the first line of /proc/driver/nvidia/version: "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570".
    """
    text = (context.system.tree.text("/proc/driver/nvidia/version") or "").partition("\n")[0]
    match = _VERSION.search(text)
    return (match[1] if match else ""), "Open Kernel Module" in text


def driver(context: Context) -> Finding:
    """The NVIDIA kernel driver."""
    tree = context.system.tree
    text = tree.text("/proc/driver/nvidia/version")
    version, is_open = driver_version(context)
    evidence: dict[str, Any] = {"version": version, "open": is_open, "address": context.gpu_address()}
    if version:
        return ok(f"NVIDIA driver {version}, {'open' if is_open else 'proprietary'} kernel module", **evidence)
    if text is not None:
        return unknown("/proc/driver/nvidia/version is there but holds no version", **evidence)
    if tree.exists("/dev/dxg"):
        return info("the NVIDIA driver is that of Windows: this is WSL", **evidence)
    if context.gpu.kind == "cuda" and not context.gpu.error:
        return info("torch uses a GPU, but /proc/driver/nvidia is hidden (a sandbox, perhaps)", **evidence)
    if context.gpu_address() and not context.wants_host:
        return error(
            f"there is an NVIDIA GPU at {context.gpu_address()}, but its driver is not loaded",
            "Install the NVIDIA driver, or start the container with GPUs (docker run --gpus all ...).",
            **evidence,
        )
    return info("no NVIDIA driver and no NVIDIA GPU", **evidence)


def device(context: Context) -> Finding:
    """The device as torch sees it."""
    gpu, build = context.gpu, context.torch
    evidence: dict[str, Any] = {
        "kind": gpu.kind, "name": gpu.name, "address": gpu.address, "total_bytes": gpu.total_bytes,
        "usable": bool(gpu.kind) and not gpu.error, "build": build.accelerator, "status": gpu.status,
        "asked": context.device,
    }  # fmt: skip
    if context.wants_host:
        return info("the CPU was asked for", **evidence)
    if not build.accelerator:
        message = f"torch {build.version} is built for the CPU alone"
        if context.has_gpu or context.device:
            return error(
                message,
                "Install a torch built for CUDA: https://pytorch.org/get-started/locally/",
                **evidence,
            )
        return info(message, **evidence)
    if gpu.status == "timeout":
        return error(clip(gpu.error), "Look into the kernel's log for NVRM and Xid messages (sudo dmesg).", **evidence)
    if gpu.error:
        message = f"torch cannot use {context.device or 'a GPU'}: {clip(gpu.error, 200)}"
        if context.has_gpu or gpu.kind or context.device:
            return error(message, "See that nvidia-smi works here, and what CUDA_VISIBLE_DEVICES says.", **evidence)
        return info(message, **evidence)
    if gpu.kind == "cuda":
        return ok(f"{clip(gpu.name)}, {format_bytes(gpu.total_bytes)}, torch {build.version}", **evidence)
    if gpu.kind:
        return ok(f"{clip(gpu.name)} ({gpu.kind}), which is not CUDA: data go there by torch's copies", **evidence)
    return info("no GPU", **evidence)


def mapping(context: Context) -> Finding:
    """Whether pages of a file at the path can be registered with CUDA: what the `mapped` backend stands on."""
    gpu = context.gpu
    evidence: dict[str, Any] = {"registered": gpu.registered, "error": gpu.register_error}
    if gpu.registered:
        return ok("a read-only page of a file here was registered with CUDA", **evidence)
    if gpu.registered is None:
        why = (
            "there is no usable CUDA GPU" if gpu.kind != "cuda" or gpu.error else "there is no file here to try it with"
        )
        return info(f"registering pages of files with CUDA was not tried: {why}", **evidence)
    return warning(
        f"pages of files here cannot be registered with CUDA: {clip(gpu.register_error)}",
        "Use local ext4, XFS or tmpfs, and an up-to-date driver and kernel; without it, bytes are copied by the CPU.",
        **evidence,
    )


def bar1(context: Context) -> Finding:
    """The window through which others on the bus reach GPU memory."""
    address = context.gpu_address()
    if not address:
        return info("no GPU whose BAR1 could be looked at", bytes=None)
    # One line for each register: start, end and flags; index 1 is BAR1. Linux, Documentation/PCI/sysfs-pci.rst.
    lines = (context.system.tree.text(f"/sys/bus/pci/devices/{address}/resource") or "").splitlines()
    try:
        start, end = (int(part, 16) for part in lines[1].split()[:2])
    except (IndexError, ValueError):
        return unknown("the size of BAR1 cannot be read from sysfs", bytes=None)
    size = end - start + 1 if end > start else 0
    if not 0 < size < 2**50:
        return unknown("sysfs gives no sensible size for BAR1", bytes=None)
    if size < _SMALL_BAR_BYTES:
        return info(
            f"BAR1 is {format_bytes(size)}: little GPU memory can be registered for DMA at one time",
            "Switch on Resizable BAR (Above 4G decoding) in the firmware, if the GPU has it.",
            bytes=size,
        )
    return ok(f"BAR1 is {format_bytes(size)}", bytes=size)


def allocator(context: Context) -> Finding:
    """Settings of torch's allocator whose memory cuFile cannot register."""
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    settings = {name: context.system.environ[name] for name in names if context.system.environ.get(name)}
    text = ",".join(settings.values()).lower().replace(" ", "")
    bad = [name for name in ("expandable_segments:true", "backend:cudamallocasync") if name in text]
    if not bad:
        return ok("torch's allocator has settings that allow registering its memory", settings=settings)
    return info(
        f"memory of torch's allocator cannot be registered with cuFile ({', '.join(bad)}); {_NOT_OURS}",
        f"Only if you pass torch's memory to cuFile yourself: unset {' and '.join(settings)}.",
        settings=settings,
    )


def link(context: Context) -> Finding:
    """The GPU's PCIe link."""
    return link_of(context, context.gpu_address(), "GPU")


def link_of(context: Context, address: str, what: str) -> Finding:
    """Speed and width of a device's PCIe link, now and at most, as sysfs has them ("32.0 GT/s PCIe", "16")."""
    if not address:
        return info(f"no {what} on the PCI bus", address="")
    folder, tree = f"/sys/bus/pci/devices/{address}", context.system.tree
    names = ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width")
    texts = [tree.text(f"{folder}/{name}", 64) or "" for name in names]
    evidence: dict[str, Any] = {"address": address, **dict(zip(names, map(clip, texts), strict=True))}
    matches = [re.match(r"\d{1,4}(\.\d{1,2})?", text) for text in texts]
    speed, top_speed, width, top_width = (float(match[0]) if match else 0.0 for match in matches)
    if not all((speed, top_speed, width, top_width)) or width > 64:
        return info(f"the {what}'s PCIe link is not shown (a virtual machine, perhaps)", **evidence)
    now = f"{what} link: {speed:g} GT/s ×{width:g} of {top_speed:g} GT/s ×{top_width:g}"
    if width < top_width:
        return warning(
            now,
            f"Seat the {what} in a slot that has ×{top_width:g} lanes, and look for bifurcation.",
            **evidence,
        )
    if speed < top_speed:
        # An idle GPU slows its link down to save power, and so do some drives.
        return info(f"{now}; an idle device may slow its link down", **evidence)
    return ok(now, **evidence)


CHECKS = (
    ("gpu.driver", driver),
    ("gpu.device", device),
    ("gpu.mapping", mapping),
    ("gpu.bar1", bar1),
    ("gpu.link", link),
    ("gpu.allocator", allocator),
)
