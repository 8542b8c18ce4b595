"""Calls of the system that fail."""

import math
import os
from contextlib import contextmanager

import pytest


@contextmanager
def failing(module, name, code, *, first=1, last=math.inf):
    """Have a function fail with an error of the system, from its call `first` to its call `last`; yields the calls."""
    calls, real = [], getattr(module, name)

    def fail(*args, **options):
        calls.append(args)
        if first <= len(calls) <= last:
            raise OSError(code, os.strerror(code))
        return real(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, fail)
        yield calls
