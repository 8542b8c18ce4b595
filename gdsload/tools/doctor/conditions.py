"""The requirements of both ways to DMA, one check each: Linux P2PDMA, and the kernel module nvidia-fs.

From NVIDIA's "GDS Support for NVMe", the troubleshooting guide of GPUDirect Storage with its chapter on NVMe P2PDMA,
the release notes, and the source of nvidia-fs.
"""

from __future__ import annotations

import re
from functools import partial

from gdsload.system.probe.known_bugs import driver_version, nvfs_version
from gdsload.tools.doctor.block import Volume
from gdsload.tools.doctor.context import Check, Context, condition, on_each
from gdsload.tools.doctor.finding import INITRAMFS, REBOOT, Finding, Fix, clip, info, warning

_KERNEL = (6, 2)
_GPUS = ("A100", "A40", "L4", "L40S", "H100", "H200", "B100", "B200", "B300")
_DWORDS = ("RMForceStaticBar1=1", "RmForceDisableIomapWC=1")
_OPTIONS = f'options nvidia NVreg_RegistryDwords="{";".join(_DWORDS)};"'
_SYMBOLS = (b"p2pdma_pgmap_ops", b"pci_p2pdma_add_resource")
"""The symbol in NVIDIA's guide, which not every kernel lists, and a function of the same feature."""
_SYMBOLS_LIMIT_BYTES = 64 * 2**20
OPEN_DRIVER = Fix(
    "Install the open NVIDIA kernel modules, 570 or later", "root", "a reboot",
    ("sudo apt install nvidia-open || sudo dnf install nvidia-open  # from NVIDIA's CUDA repository", REBOOT),
)  # fmt: skip
_HOOKS = re.compile(rb"\bnvme\w*_register_nvfs_dma_ops\b")
_PATCHED = Fix(
    "Install the nvme driver of DOCA-OFED 26.04 or later, which registers with nvidia-fs", "root", "a reboot",
    ("sudo apt install doca-ofed mlnx-nvme-dkms  # from NVIDIA's DOCA repository", INITRAMFS, REBOOT),
)  # fmt: skip
_NODES = (
    "# docker run -e NVIDIA_GDS=enabled ...   or: --device /dev/nvidia-fs0, and its siblings",
    "# Kubernetes: env: [{name: NVIDIA_GDS, value: enabled}]",
    "# apptainer run --nv --bind /dev/nvidia-fs0 ...",
)


def gpu(context: Context) -> Finding:
    """A GPU in NVIDIA's supported list."""
    name = clip(context.gpu_name())
    if not name:
        return condition(context, None, "the GPU's model is not known")
    words = re.findall(r"[A-Z]+\d+[A-Z]*", name.upper())
    if "GH200" in words or "GB200" in words or not any(word in _GPUS for word in words):
        message = f"NVIDIA does not list {name} for P2PDMA ({', '.join(_GPUS)}); nvidia-fs may work"
        return condition(context, False, message)
    return condition(context, True, name)


def drive(context: Context, volume: Volume) -> Finding:
    """A plain local NVMe drive: no RAID, no NVMe over fabrics."""
    stack, drives = volume.stack, volume.drives
    local = Fix("Put the data on a local NVMe drive")
    if not stack:
        return condition(context, False, "the data are not on a block device", local)
    raid = next((block for block in stack if block.kind == "md"), None)
    if raid is not None:
        message = f"{raid.name} is md {clip(raid.detail)}, which P2PDMA does not support"
        fix = Fix("Mount the drives one by one, and write shards with spread_over=", "root", "copying the data")
        return condition(context, False, message, fix)
    bad = [block for block in drives if block.kind != "nvme" or block.transport not in ("pcie", "")]
    if bad:
        kind = f"{bad[0].kind} {bad[0].transport}".strip()
        return condition(context, False, f"{bad[0].name} is {kind}, not a local NVMe drive", local)
    return condition(context, True, f"{', '.join(block.name for block in drives)}: NVMe on PCIe")


def kernel(context: Context) -> Finding:
    """Linux 6.2 or later, or a kernel of Red Hat, which has this feature in older versions (but not in RHEL 9.5)."""
    release = clip(context.system.tree.text("/proc/sys/kernel/osrelease", 256) or "")
    match, red_hat = re.match(r"(\d{1,4})\.(\d{1,4})", release), re.search(r"\.el(\d{1,2})(?:_(\d{1,2}))?", release)
    if match is None:
        return condition(context, None, "the kernel's version cannot be read")
    if red_hat and red_hat.groups() == ("9", "5") and context.system.architecture == "x86_64":
        fix = Fix("Boot a kernel of RHEL 9.6 or later", "root", "a reboot", ("sudo dnf upgrade kernel", REBOOT))
        return condition(context, False, f"Linux {release}: NVIDIA does not support P2PDMA on RHEL 9.5", fix)
    if red_hat or (int(match[1]), int(match[2])) >= _KERNEL:
        return condition(context, True, f"Linux {release}")
    fix = Fix("Boot Linux 6.2 or later", "root", "a reboot")
    return condition(context, False, f"Linux {release} is older than 6.2", fix)


def option(context: Context) -> Finding:
    """A kernel built with CONFIG_PCI_P2PDMA, recognised by its symbols as in NVIDIA's guide."""
    symbols = context.system.tree.data("/proc/kallsyms", _SYMBOLS_LIMIT_BYTES)
    if not symbols:
        return condition(context, None, "the kernel's symbols cannot be read")
    found = any(name in symbols for name in _SYMBOLS)
    fix = Fix("Boot a kernel built with CONFIG_PCI_P2PDMA=y", "root", "a reboot")
    return condition(context, found, f"the kernel is built with{'' if found else 'out'} CONFIG_PCI_P2PDMA", fix)


def driver(context: Context, *, oldest: int) -> Finding:
    """The open NVIDIA kernel driver of version `oldest` or later; nvidia-fs needs it from nvidia-fs 2.17.5 on."""
    version, is_open = driver_version(context.system.tree)
    if not version:
        return condition(context, None, "the NVIDIA driver's version is not known")
    if not is_open:
        return condition(context, False, f"the NVIDIA driver {version} is not the open one", OPEN_DRIVER)
    if int(version.partition(".")[0]) < oldest:
        return condition(context, False, f"the NVIDIA driver {version} is older than {oldest}", OPEN_DRIVER)
    return condition(context, True, f"open NVIDIA driver {version}")


def static_bar1(context: Context) -> Finding:
    """The driver's registry keys, from its `params`: the parameter in sysfs is empty even if it is set."""
    if context.system.architecture not in ("x86_64", "AMD64"):
        return condition(context, True, f"the driver needs no registry keys on {clip(context.system.architecture)}")
    dwords = registry_dwords(context)
    if dwords is None:
        return condition(context, None, "/proc/driver/nvidia/params cannot be read")
    present = {part.strip().lower() for part in dwords.split(";")}
    missing = [name for name in _DWORDS if name.lower() not in present]
    if not missing:
        return condition(context, True, "the driver has static BAR1")
    lines = (f"echo '{_OPTIONS}' | sudo tee /etc/modprobe.d/nvidia-p2pdma.conf", INITRAMFS, REBOOT)
    older = int(driver_version(context.system.tree)[0].partition(".")[0] or 0) < 595
    price = "a reboot" + "; before driver 595 each process also leaks some kernel memory" * older
    fix = Fix("Load the NVIDIA driver with static BAR1", "root", price, lines)
    return condition(context, False, f"the driver was loaded without {', '.join(missing)}", fix)


def registry_dwords(context: Context) -> str | None:
    """The registry keys that the NVIDIA driver was loaded with; None if they cannot be read."""
    text = context.system.tree.text("/proc/driver/nvidia/params")
    line = next((line for line in (text or "").splitlines() if line.startswith("RegistryDwords:")), "")
    return None if text is None else clip(line.partition(":")[2].strip().strip('"'), 400)


def multipath(context: Context) -> Finding:
    """NVMe multipath, which must be off."""
    value = context.system.tree.text("/sys/module/nvme_core/parameters/multipath", 16)
    if value is None:
        return condition(context, True, "nvme_core has no multipath")
    holds = value.upper().startswith(("N", "0"))
    lines = ("echo 'options nvme_core multipath=N' | sudo tee /etc/modprobe.d/nvme.conf", INITRAMFS, REBOOT)
    fix = Fix("Turn NVMe multipath off", "root", "a reboot", lines)
    return condition(context, holds, f"nvme_core.multipath={'N' if holds else 'Y'}", fix)


def config(context: Context) -> Finding:
    """`use_pci_p2pdma` in cuFile's configuration, or its environment variable."""
    lines = (f'# or in {clip(context.config.path)}: {{"properties": {{"use_pci_p2pdma": true}}}}',)
    fix = Fix("Set CUFILE_USE_PCIP2PDMA=true for the training", commands=("export CUFILE_USE_PCIP2PDMA=true", *lines))
    message = "use_pci_p2pdma is on" if context.wants_p2p else "use_pci_p2pdma is off, which is the default"
    return condition(context, context.wants_p2p, message, fix)


def module(context: Context) -> Finding:
    """The kernel module, and its device nodes in a container."""
    tree = context.system.tree
    version, nodes = clip(nvfs_version(tree)), tree.exists("/dev/nvidia-fs0")
    if context.nvfs and nodes:
        return condition(context, True, f"nvidia-fs {version} is loaded")
    if context.nvfs:
        fix = Fix("Start the container with NVIDIA_GDS=enabled", "container", "a container restart", _NODES)
        message = f"nvidia-fs {version} is loaded, but there is no /dev/nvidia-fs0 here"
        return condition(context, False, message, fix)
    install = "sudo apt install nvidia-fs || sudo dnf install nvidia-fs  # from NVIDIA's CUDA repository"
    built = bool(tree.names("/var/lib/dkms/nvidia-fs"))
    does = "Load nvidia-fs" if built else "Install and load nvidia-fs 2.26.6 or later"
    lines = ("sudo modprobe nvidia-fs",) if built else (install, "sudo modprobe nvidia-fs")
    return condition(context, False, "nvidia-fs is not loaded", Fix(does, "root", "", lines))


def nvme(context: Context) -> Finding:
    """The nvme driver's hooks for nvidia-fs, which the kernel's own nvme driver lacks."""
    if not any(block.kind == "nvme" for block in context.place.drives):
        return condition(context, True, "the data are not on NVMe, so its driver does not matter")
    modules = context.system.tree.text("/proc/driver/nvidia-fs/modules")
    if modules is not None:
        if re.search(r"^\s*nvme\s*:", modules, re.MULTILINE):
            return condition(context, True, "the nvme driver is registered with nvidia-fs")
        message = "the nvme driver is not registered with nvidia-fs; the kernel's own has no hooks for it"
        return condition(context, False, message, _PATCHED)
    symbols = context.system.tree.data("/proc/kallsyms", _SYMBOLS_LIMIT_BYTES)
    if not symbols:
        return condition(context, None, "the nvme driver's hooks for nvidia-fs cannot be checked")
    if _HOOKS.search(symbols):
        return condition(context, True, "the nvme driver has hooks for nvidia-fs")
    message = "the nvme driver is the kernel's own, without hooks for nvidia-fs"
    return condition(context, False, message, _PATCHED)


def bugs(context: Context) -> Finding:
    """Known bugs of this nvidia-fs with this driver, recognised by their versions."""
    bug = context.bug
    if not context.nvfs:
        return info("nvidia-fs is not loaded")
    if bug is None:
        hidden = "; DKMS's log is not visible in a container" if context.container else ""
        return condition(context, True, f"no known bug of nvidia-fs with this driver{hidden}")
    fix = Fix(bug.remedy, "root", "a reboot if nvidia-fs is in use" if bug.hangs else "", bug.commands)
    if not bug.hangs:
        return condition(context, False, bug.what, fix)
    return warning(bug.what, fix, fulfilled=False)  # even if earlier reads used DMA


CHECKS: tuple[tuple[str, Check], ...] = (
    ("cufile.p2p-gpu", gpu),
    ("cufile.p2p-drive", on_each(drive)),
    ("cufile.p2p-kernel", kernel),
    ("cufile.p2p-option", option),
    ("cufile.p2p-driver", partial(driver, oldest=565)),
    ("cufile.p2p-bar1", static_bar1),
    ("cufile.p2p-multipath", multipath),
    ("cufile.p2p-config", config),
    ("cufile.nvfs-driver", partial(driver, oldest=0)),
    ("cufile.nvfs-nvme", nvme),
    ("cufile.nvidia-fs", module),
    ("cufile.nvfs-bugs", bugs),
)
