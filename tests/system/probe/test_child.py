"""The probing process, with a stand-in for cuFile: only counters and right bytes prove a path."""

from __future__ import annotations

import ctypes
import enum
import json
import os
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from gdsload.system.probe import CufileProbe, child
from gdsload.system.probe.process import MARK


class OpError(enum.IntEnum):
    HANDLE_NOT_REGISTERED = 5027
    IO_NOT_SUPPORTED = 5008


class CufileError(Exception):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"{OpError(status).name} ({status}): so it is")


class Cufile(ModuleType):
    """Reads by the CPU, and counts it as P2PDMA; makes no batches."""

    def __init__(self, **flaws: Callable[..., Any]) -> None:
        super().__init__("cuda.bindings.cufile")
        self.gpu = SimpleNamespace(n_nvfs_reads=7, n_p2p_reads=0, n_posix_reads=0)
        self.StatsLevel3 = lambda: SimpleNamespace(ptr=0, per_gpu_stats=[self.gpu])
        for name in ("set_stats_level", "driver_open", "stats_start", "get_stats_l3"):
            setattr(self, name, lambda *_: None)
        self.get_version = lambda: 1151
        self.__dict__.update(
            flaws, OpError=OpError, cuFileError=CufileError, FileHandleType=SimpleNamespace(OPAQUE_FD=1)
        )

    def handle_register(self, address: int) -> int:
        return int(child.CufileDescr.from_address(address).handle)

    def read(self, handle: int, base: int, nbytes: int, offset: int, position: int) -> int:
        data = os.pread(os.open(f"/proc/self/fd/{handle}", os.O_RDONLY), nbytes, offset)
        ctypes.memmove(base + position, data, len(data))
        self.gpu.n_p2p_reads += 1
        return len(data)


def refuse(*_: object) -> None:
    raise CufileError(5027)


NOT_REGISTERED = "HANDLE_NOT_REGISTERED (5027): so it is"


@pytest.mark.parametrize(
    ("flaws", "status", "stage", "reason"),
    [
        ({}, "ok", "done", "a read was made and its bytes are right"),
        ({"get_version": refuse}, "missing", "library", f"cuda.bindings cannot load libcufile: {NOT_REGISTERED}"),
        ({"driver_open": refuse}, "failed", "driver-open", f"cuFile's driver cannot be opened: {NOT_REGISTERED}"),
        ({"handle_register": refuse}, "failed", "register", f"the file cannot be registered: {NOT_REGISTERED}"),
        ({"read": lambda *_: -5008}, "failed", "read", "cuFile cannot read the file: IO_NOT_SUPPORTED"),
        ({"read": lambda *_: 299_008}, "failed", "read", "cuFile read 299008 bytes of 299008, or other bytes than"),
        ({"read": lambda *_: 10}, "failed", "read", "cuFile read 10 bytes of 299008, or other bytes"),
        ({"read": lambda *_: 1 // 0}, "failed", "read", "ZeroDivisionError"),
    ],
)
def test_what_it_answers(tmp_path, monkeypatch, capfd, flaws, status, stage, reason) -> None:
    (tmp_path / "shard").write_bytes(os.urandom(300_000))
    for name, module in (("cuda", ModuleType("cuda")), ("cuda.bindings", SimpleNamespace(cufile=Cufile(**flaws)))):
        monkeypatch.setitem(sys.modules, name, module)
    for name, answer in (("is_available", True), ("get_device_name", "a GPU"), ("synchronize", None)):
        monkeypatch.setattr(torch.cuda, name, lambda answer=answer: answer)
    monkeypatch.setattr(os, "_exit", lambda code: None)
    child.main([str(tmp_path / "shard"), "cpu"])
    lines = [line for line in capfd.readouterr().out.splitlines() if line]
    found = CufileProbe(**json.loads(lines[-1].removeprefix(MARK)))
    assert (found.status, found.stage) == (status, stage)
    assert found.error == next((one.name for one in OpError if status == "failed" and one.name in reason), "")
    assert found.reason.startswith(reason)
    assert (found.path, found.proven) == (("gds-p2p", True) if status == "ok" else ("unknown", False))
    assert found.read_bytes == (299_008 if status == "ok" else 0)
    assert found.version == ("" if status == "missing" else "1.15.1")
    assert not found.batches
