"""Checks of the GPU, its driver, and torch's use of them."""

from __future__ import annotations

import re
from typing import Any

from gdsload.system.probe.known_bugs import driver_version
from gdsload.system.units import format_bytes
from gdsload.tools.doctor.conditions import OPEN_DRIVER, registry_dwords
from gdsload.tools.doctor.context import Context, trouble
from gdsload.tools.doctor.finding import Finding, Fix, clip, error, info, ok, warning

_VIRTUAL = re.compile(r"-\d{1,3}[ABCQ]$")
"""The end of a vGPU's name, such as that of ``NVIDIA A100-40C``."""
_BEFORE_ADA = re.compile(r"\b[AMPTV]\d")
_FEW_BYTES = 64 * 2**20
_SMALL_BYTES = 2**30


def driver(context: Context) -> Finding:
    """The NVIDIA kernel driver."""
    version, is_open = driver_version(context.system.tree)
    if version:
        return ok(f"NVIDIA driver {version}, {'open' if is_open else 'proprietary'} kernel module")
    if context.gpu.kind == "cuda" and not context.gpu.error:
        return info("torch uses a GPU, but /proc/driver/nvidia shows no version (WSL, or a sandbox)")
    if context.gpu_address() and not context.wants_host:
        fix = Fix("Install the NVIDIA driver", "root", "", OPEN_DRIVER.commands[:1])
        if context.container:
            line = "# docker run --gpus all ...   or Kubernetes: resources: {limits: {nvidia.com/gpu: 1}}"
            fix = Fix("Start the container with GPUs", "container", "a restart of it", (line,))
        return error(f"there is an NVIDIA GPU at {context.gpu_address()}, but its driver is not loaded", fix)
    return info("no NVIDIA driver and no NVIDIA GPU")


def device(context: Context) -> Finding:
    """The device as torch sees it."""
    gpu, build = context.gpu, context.torch
    evidence = {"kind": gpu.kind, "usable": bool(gpu.kind) and not gpu.error, "status": gpu.status}
    if context.wants_host:
        return info("the user chose the CPU", **evidence)
    if not build.accelerator:
        message = f"torch {build.version} is built without CUDA"
        if context.has_gpu or context.device:
            return error(message, "Install torch with CUDA: https://pytorch.org/get-started/locally/", **evidence)
        return info(message, **evidence)
    if gpu.status == "timeout":
        fix = Fix("Look for NVRM and Xid in the kernel's log", "root", "", ("sudo dmesg | grep -E 'NVRM|Xid'",))
        return error(clip(gpu.error), fix, **evidence)
    if gpu.error:
        message = f"torch cannot use {context.device or 'a GPU'}: {clip(gpu.error, 200)}"
        if context.has_gpu or gpu.kind or context.device:
            lines = ("nvidia-smi", 'echo "$CUDA_VISIBLE_DEVICES"')
            return error(message, Fix("Check that nvidia-smi works and lists this GPU", commands=lines), **evidence)
        return info(message, **evidence)
    if gpu.kind == "cuda":
        return ok(f"{clip(gpu.name)}, {format_bytes(gpu.total_bytes)}, torch {build.version}", **evidence)
    if gpu.kind:
        return ok(f"{clip(gpu.name)} ({gpu.kind}), without CUDA: torch copies the batches to it", **evidence)
    return info("no GPU", **evidence)


def mapping(context: Context) -> Finding:
    """The registration of a file's pages with CUDA, which the `mapped` backend needs, and the rate of their copies."""
    gpu = context.gpu
    evidence: dict[str, Any] = {
        "registered": gpu.registered, "slow": gpu.slow, "coherent": gpu.coherent,
        "mapped_rate": gpu.mapped_rate, "pinned_rate": gpu.pinned_rate,
    }  # fmt: skip
    mapped, pinned = (f"{rate / 1e9:.3g} GB/s" for rate in (gpu.mapped_rate, gpu.pinned_rate))
    if gpu.slow:
        message = f"the GPU copies pages of files at {mapped} and pinned memory at {pinned}, so bounce is used"
        return info(message, **evidence)
    if gpu.registered:
        rate = f"; the GPU copies them at {mapped} and pinned memory at {pinned}" if gpu.mapped_rate else ""
        return ok(f"read-only pages of a file here can be registered with CUDA{rate}", **evidence)
    if gpu.registered is None:
        no_gpu = gpu.kind != "cuda" or gpu.error
        why = "there is no usable CUDA GPU" if no_gpu else "there is no file here to try it with"
        return info(f"registering pages of files with CUDA was not tried: {why}", **evidence)
    return warning(
        f"pages of files here cannot be registered with CUDA: {clip(gpu.register_error)}",
        "Use a local ext4, XFS or tmpfs, and a newer driver and kernel; otherwise the CPU copies the bytes",
        **evidence,
    )


def bar1(context: Context) -> Finding:
    """The size and the free part of BAR1, the window of the GPU's memory that drives write into."""
    gpu, total = context.gpu, context.gpu.bar1_bytes or _bar1_by_sysfs(context)
    free = gpu.bar1_free if gpu.bar1_bytes else None
    if not total:
        return info("the size of BAR1 is not visible")
    if total < _SMALL_BYTES:
        fix = Fix("Turn on Resizable BAR and Above 4G Decoding in the firmware", "root", "a reboot")
        return trouble(context, f"BAR1 has {format_bytes(total)}, too little for cuFile's buffers", fix)
    static = "RMForceStaticBar1=1" in (registry_dwords(context) or "")  # then all of it is in use, and shared
    if free is not None and free < _FEW_BYTES and not static:
        fix = Fix("End the processes that use BAR1", commands=("nvidia-smi -q -d MEMORY,PIDS",))
        message = f"only {format_bytes(free)} of {format_bytes(total)} of BAR1 are free: cuFile cannot register memory"
        return trouble(context, message, fix)
    left = f", {format_bytes(free)} free" if free is not None and not static else ""
    return ok(f"BAR1 has {format_bytes(total)}{left}")


def _bar1_by_sysfs(context: Context) -> int:
    lines = (context.system.tree.text(f"/sys/bus/pci/devices/{context.gpu_address()}/resource") or "").splitlines()
    words = lines[1].split() if len(lines) > 1 else []
    if len(words) < 2 or not all(re.fullmatch(r"0x[0-9a-f]{1,16}", word) for word in words[:2]):
        return 0
    first, last = int(words[0], 16), int(words[1], 16)
    return last - first + 1 if last > first else 0


def part(context: Context) -> Finding:
    """MIG and vGPU: a part of a GPU, which its name shows."""
    name = context.gpu_name()
    virtual = bool(_VIRTUAL.search(name))
    if virtual and _BEFORE_ADA.search(name):
        fix = Fix("Pass a whole GPU through to the machine, or use Ada or later", "root", "a new virtual machine")
        message = f"{clip(name)} is a vGPU of a model before Ada, which GDS does not support"
        return trouble(context, message, fix)
    if " MIG " in f"{name} ":
        return info(f"{clip(name)} is a MIG slice, on which NVIDIA does not document GDS: see cufile.probe")
    if virtual:
        return info(f"{clip(name)} is a vGPU: GDS needs the open driver")
    return ok("neither MIG nor vGPU")


CHECKS = (
    ("gpu.driver", driver),
    ("gpu.device", device),
    ("gpu.mapping", mapping),
    ("gpu.bar1", bar1),
    ("gpu.slice", part),
)
