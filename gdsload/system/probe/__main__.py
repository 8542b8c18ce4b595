"""``python -m gdsload.system.probe FILE DEVICE``: probe in this process, and print one JSON object."""

from __future__ import annotations

import sys

from gdsload.system.probe.child import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
