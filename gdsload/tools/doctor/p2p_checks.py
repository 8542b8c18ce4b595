"""The conditions of DMA without nvidia-fs (Linux P2PDMA), each by itself.

From NVIDIA's "GDS Support for NVMe" and the chapter on NVMe P2PDMA of its GPUDirect Storage troubleshooting guide.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from gdsload.tools.doctor.context import Context, on_each
from gdsload.tools.doctor.finding import Finding, clip, info, ok, unknown, warning
from gdsload.tools.doctor.gpu_checks import driver_version

_KERNEL = (6, 2)
_DRIVER = 565
_GPUS = ("A100", "A40", "L4", "L40S", "H100", "H200", "B100", "B200", "B300")
_DWORDS = ("RMForceStaticBar1=1", "RmForceDisableIomapWC=1")
_SYMBOLS = (b"p2pdma_pgmap_ops", b"pci_p2pdma_add_resource")
"""The one that the guide names, which not every kernel lists, and a function beside it."""
_SYMBOLS_LIMIT_BYTES = 64 * 2**20


def _fails(context: Context, message: str, remedy: str, **evidence: Any) -> Finding:
    """A condition that fails: a warning if it matters, a fact if there is nvidia-fs or no GPU."""
    evidence["fulfilled"] = False
    if context.nvfs or not context.has_gpu:
        return info(message, **evidence)
    return warning(message, remedy, **evidence)


def _holds(message: str, **evidence: Any) -> Finding:
    return ok(message, fulfilled=True, **evidence)


def _unclear(context: Context, message: str, **evidence: Any) -> Finding:
    evidence["fulfilled"] = None
    return unknown(message, **evidence) if context.has_gpu and not context.nvfs else info(message, **evidence)


def kernel(context: Context) -> Finding:
    """Linux 6.2 or later."""
    release = context.system.tree.text("/proc/sys/kernel/osrelease", 256) or ""
    match = re.match(r"(\d{1,4})\.(\d{1,4})", release)
    if match is None:
        return _unclear(context, "the kernel's version cannot be read", release=clip(release))
    if (int(match[1]), int(match[2])) >= _KERNEL:
        return _holds(f"Linux {clip(release)}", release=clip(release))
    return _fails(
        context, f"Linux {clip(release)} is older than 6.2", "Boot Linux 6.2 or later.", release=clip(release)
    )


def option(context: Context) -> Finding:
    """A kernel built with CONFIG_PCI_P2PDMA, by its symbols, as NVIDIA's guide looks for it."""
    symbols = context.system.tree.data("/proc/kallsyms", _SYMBOLS_LIMIT_BYTES)
    if not symbols:
        return _unclear(context, "the kernel's symbols cannot be read")
    if any(name in symbols for name in _SYMBOLS):
        return _holds("the kernel has CONFIG_PCI_P2PDMA, by its symbols")
    return _fails(
        context,
        "the kernel has no CONFIG_PCI_P2PDMA, by its symbols",
        "Boot a kernel built with CONFIG_PCI_P2PDMA=y.",
    )


def driver(context: Context) -> Finding:
    """The open NVIDIA kernel driver, 565 or later."""
    version, is_open = driver_version(context)
    evidence: dict[str, Any] = {"version": version, "open": is_open}
    if not version:
        return _unclear(context, "the NVIDIA driver's version is not known", **evidence)
    if not is_open:
        remedy = "Install the open kernel modules of the NVIDIA driver (nvidia-open), 570 or later."
        return _fails(context, f"the NVIDIA driver {version} is not the open one", remedy, **evidence)
    if int(version.partition(".")[0]) < _DRIVER:
        remedy = "Install version 570 or later of the NVIDIA driver."
        return _fails(context, f"the NVIDIA driver {version} is older than 565", remedy, **evidence)
    return _holds(f"open NVIDIA driver {version}", **evidence)


def static_bar1(context: Context) -> Finding:
    """The driver's registry keys, from its `params`: the parameter in sysfs is empty even when it is in force."""
    if context.system.architecture not in ("x86_64", "AMD64"):
        return _holds(f"needs no registry keys on {clip(context.system.architecture)}", dwords="")
    text = context.system.tree.text("/proc/driver/nvidia/params")
    if text is None:
        return _unclear(context, "/proc/driver/nvidia/params cannot be read", dwords="")
    line = next((line for line in text.splitlines() if line.startswith("RegistryDwords:")), "")
    dwords = clip(line.partition(":")[2].strip().strip('"'), 400)
    present = {part.strip().lower() for part in dwords.split(";")}
    missing = [name for name in _DWORDS if name.lower() not in present]
    if not missing:
        return _holds("the driver has static BAR1", dwords=dwords)
    remedy = (
        f'Write: options nvidia NVreg_RegistryDwords="{";".join(_DWORDS)};" into /etc/modprobe.d/nvidia-p2pdma.conf, '
        "rebuild the initramfs and reboot."
    )
    return _fails(context, f"the driver was loaded without {', '.join(missing)}", remedy, dwords=dwords)


def multipath(context: Context) -> Finding:
    """NVMe multipath switched off."""
    value = context.system.tree.text("/sys/module/nvme_core/parameters/multipath", 16)
    if value is None:
        return _holds("nvme_core has no multipath here", value=None)
    if value.upper().startswith(("N", "0")):
        return _holds("nvme_core.multipath=N", value=clip(value))
    remedy = "Write: options nvme_core multipath=N into /etc/modprobe.d/nvme.conf, rebuild the initramfs and reboot."
    return _fails(context, "nvme_core.multipath is on", remedy, value=clip(value))


def gpu(context: Context) -> Finding:
    """A GPU of the supported list."""
    name = context.gpu_name()
    if not name:
        return _unclear(context, "the GPU's model is not known", name="")
    words = re.findall(r"[A-Z]+\d+[A-Z]*", name.upper())
    if "GH200" in words or "GB200" in words:
        return _fails(context, f"{clip(name)} is not supported", "Load nvidia-fs.", name=clip(name))
    if any(word in _GPUS for word in words):
        return _holds(clip(name), name=clip(name))
    remedy = f"NVIDIA supports it on {', '.join(_GPUS)}; on others load nvidia-fs."
    return _fails(context, f"{clip(name)} is not in NVIDIA's list", remedy, name=clip(name))


def drive(context: Context) -> Finding:
    """A plain local NVMe drive: no RAID, no NVMe over fabrics."""
    stack = context.place.stack
    evidence: dict[str, Any] = {"stack": [f"{block.name} ({block.kind})" for block in stack]}
    if not stack:
        return _fails(context, "the data are on no block device", "Put them on a local NVMe drive.", **evidence)
    raid = next((block for block in stack if block.kind == "md"), None)
    if raid is not None:
        remedy = "Mount the drives one by one (gdsload reads several folders at once), or load nvidia-fs."
        return _fails(context, f"{raid.name} is md {clip(raid.detail)}, which P2PDMA cannot do", remedy, **evidence)
    bad = [block for block in context.place.drives if block.kind != "nvme" or block.transport not in ("pcie", "")]
    if bad:
        what = f"{bad[0].name} is {bad[0].kind} {bad[0].transport}".strip()
        return _fails(context, f"{what}, not a local NVMe drive", "Put the data on a local NVMe drive.", **evidence)
    return _holds(f"{', '.join(block.name for block in context.place.drives)}: NVMe on PCIe", **evidence)


def config(context: Context) -> Finding:
    """`use_pci_p2pdma` in cuFile's configuration, or its variable."""
    properties = context.config.values.get("properties")
    value = properties.get("use_pci_p2pdma") if isinstance(properties, dict) else None
    variable = context.system.environ.get("CUFILE_USE_PCIP2PDMA", "")
    if value is True or variable.lower() in ("1", "true"):
        return _holds("use_pci_p2pdma is on", file=context.config.path, variable=variable)
    setting = '{"properties": {"use_pci_p2pdma": true}}'
    remedy = f"Write {setting} into {clip(context.config.path)}, or set CUFILE_USE_PCIP2PDMA=true."
    return _fails(
        context,
        "use_pci_p2pdma is off, as it is by default",
        remedy,
        file=context.config.path,
        variable=variable,
    )


_CONDITIONS: tuple[tuple[str, Callable[[Context], Finding]], ...] = (
    ("cufile.p2p-kernel", kernel),
    ("cufile.p2p-option", option),
    ("cufile.p2p-driver", driver),
    ("cufile.p2p-bar1", static_bar1),
    ("cufile.p2p-multipath", multipath),
    ("cufile.p2p-gpu", gpu),
    ("cufile.p2p-drive", on_each(drive)),
    ("cufile.p2p-config", config),
)


def summary(context: Context) -> Finding:
    """All conditions together."""
    found = {name: check(context).evidence["fulfilled"] for name, check in _CONDITIONS}
    failed = [name for name, fulfilled in found.items() if fulfilled is False]
    open_ones = [name for name, fulfilled in found.items() if fulfilled is None]
    evidence: dict[str, Any] = {"failed": failed, "unknown": open_ones}
    if not failed and not open_ones:
        proven = context.probe is not None and context.probe.proven
        if context.nvfs or context.probe is None or proven:
            return ok("all conditions of P2PDMA are fulfilled", **evidence)
        # NVIDIA's release notes, known issues: it can fail with KASLR on x86-64.
        return info(
            "all conditions of P2PDMA are fulfilled, and yet no DMA was seen",
            "Look into cuFile's log (--json), and try the kernel parameter nokaslr.",
            **evidence,
        )
    parts = [f"{len(failed)} of {len(found)} conditions fail"] if failed else []
    parts += [f"{len(open_ones)} unknown"] if open_ones else []
    return info(f"P2PDMA: {', '.join(parts)} ({', '.join(name[11:] for name in [*failed, *open_ones])})", **evidence)


CHECKS = (*_CONDITIONS, ("cufile.p2p", summary))
