"""A source in a module that processes import in no time: no torch, no pytest."""

import os
import signal
import time
from pathlib import Path

from gdsload.conversion.source import Item, Part


class Leisurely:
    """Samples of 16 bytes that take a while each, in parts of a known number of them.

    Args:
        parts: how many parts there are.
        each: samples of each.
        pause_s: how long each sample takes.
        threads: whether threads do.
        begun: a folder for a file for each part that is begun.
        fatal: the number of the part that kills its process.
    """

    kind = "leisurely numbers"

    def __init__(self, parts=2, each=40, pause_s=0.01, *, threads=False, begun=None, fatal=None):
        self.listed, self.each, self.pause_s, self.threads = parts, each, pause_s, threads
        self.begun, self.fatal = begun, fatal

    def describe(self):
        return {}

    def parts(self, target_bytes):
        return [Part(f"part {n}", (n,), self.each, 16 * self.each) for n in range(self.listed)]

    def read(self, part):
        (n,) = part.where
        if self.begun is not None:
            Path(self.begun, f"begun-{n}-{os.getpid()}").touch()
        if n == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        for number in range(self.each * n, self.each * (n + 1)):
            time.sleep(self.pause_s)
            yield Item(f"number {number}", {"n": number, "m": number}.copy)
