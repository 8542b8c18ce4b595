"""Ctrl-C at a place of one's choice, by Python's tracing of the thread."""

from __future__ import annotations

import sys


def struck(call, trace):
    """Call something while its thread is traced; whether Ctrl-C struck, as which the tracer may raise."""
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
