"""The channel of a contender's process: one line of JSON at a time on its standard input, answered alike."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["serve"]

T = TypeVar("T")


def serve(
    begin: Callable[[dict[str, Any]], tuple[T, dict[str, Any]]],
    perform: Callable[[T, dict[str, Any]], dict[str, Any]],
) -> None:
    """Serve until the input ends. Libraries print; the answers' channel is kept from them.

    Args:
        begin: makes the contender that the first order names, and says of it what goes into the record.
        perform: does what a further order asks for.
    """
    orders = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    contender: T | None = None
    for line in orders:
        order = json.loads(line)
        try:
            if contender is None:
                contender, answer = begin(order)
            elif order["op"] == "imported":  # which package of a name it has: several trees may be on this machine
                answer = {"file": sys.modules[order["name"]].__file__}
            else:
                answer = perform(contender, order)
        except Exception as error:  # whatever a peer raises is its result
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}".strip()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
