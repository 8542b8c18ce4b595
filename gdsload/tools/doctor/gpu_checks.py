"""Checks of the GPU, its driver, and torch's use of them."""

from __future__ import annotations

import re
from typing import Any

from gdsload.system.units import format_bytes
from gdsload.tools.doctor.context import Context
from gdsload.tools.doctor.finding import Finding, clip, error, info, ok, unknown, warning

_VERSION = re.compile(r"\b(\d{3,4}(?:\.\d+){1,2})\b")


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
    """The registration of a file's pages with CUDA, which the `mapped` backend needs."""
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


CHECKS = (
    ("gpu.driver", driver),
    ("gpu.device", device),
    ("gpu.mapping", mapping),
)
