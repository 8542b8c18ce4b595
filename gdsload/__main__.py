"""`python -m gdsload`."""

from __future__ import annotations

import sys

from gdsload.tools.cli import main

sys.exit(main())
