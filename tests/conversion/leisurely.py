"""A source in a module that processes import in no time: no torch, no pytest."""

import time

from gdsload.conversion.source import Item, Part


class Leisurely:
    """Samples of 16 bytes that take a while each, in two parts of a known number of them."""

    kind = "leisurely numbers"
    threads = False

    def describe(self):
        return {}

    def parts(self, target_bytes):
        return [Part(f"half {n}", (40 * n, 40 * n + 40), 40, 640) for n in range(2)]

    def read(self, part):
        for number in range(*part.where):
            time.sleep(0.01)
            yield Item(f"number {number}", {"n": number, "m": number}.copy)
