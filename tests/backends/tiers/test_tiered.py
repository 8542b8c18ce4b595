"""What a tier is asked for, by whoever reads and by whoever closes it."""

from __future__ import annotations

import sys
import threading
from itertools import count

from gdsload.backends.tiers.tiered import Filling
from tests.tracing import struck


def struck_at(call, number):
    """Have Ctrl-C strike where the `number`-th function returns that a call comes to; gives whether it came to it."""
    left = iter(range(number))

    def leave(_frame, event, _):
        if event == "return" and next(left, None) is None:
            sys.settrace(None)
            raise KeyboardInterrupt
        return leave

    return struck(call, lambda *_: leave)


def test_whoever_was_interrupted_while_ending_ends_again():
    for number in count():
        filling = Filling(1)
        again = struck_at(filling.end, number)
        ending = threading.Thread(target=filling.end, daemon=True)
        ending.start()
        ending.join(5)
        assert not ending.is_alive()
        assert filling.over
        filling.wait()  # whoever fills the tier is told wherever he is
        filling.pause(30)
        if not again:
            return
