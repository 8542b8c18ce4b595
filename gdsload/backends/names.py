"""The names of backends, and what each is in a few words."""

from __future__ import annotations

from typing import Literal, get_args

BackendName = Literal["gds", "mapped", "bounce", "host"]
BackendChoice = Literal["auto", "gds", "mapped", "bounce", "host"]
"""The backends that users may request: one by name, or an automatic choice by evidence."""
BACKEND_CHOICES: tuple[BackendChoice, ...] = get_args(BackendChoice)
SUMMARIES: dict[BackendName, str] = {
    "gds": "drive to GPU by cuFile",
    "mapped": "page cache to GPU, registered with CUDA",
    "bounce": "drive or page cache to GPU through pinned memory",
    "host": "into CPU memory, from where torch copies",
}
"""The path of bytes of each."""
