"""The configuration of cuFile, read without loading anything."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gdsload.system.probe.tree import Tree

_CONFIG_LIMIT_BYTES = 2**20
# An unclosed comment or string extends to the end: trying again from every quote in it would take for ever.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"?|//[^\n]*|/\*(?:.*?\*/|.*)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of cuFile.

    Attributes:
        text: its content; None if there is no such file, and cuFile uses its defaults.
        values: what it says; empty if it cannot be parsed.
        error: why it cannot be parsed, or empty.
    """

    path: str
    text: str | None
    values: dict[str, Any]
    error: str

    @property
    def properties(self) -> dict[str, Any]:
        """The section ``properties`` of the configuration."""
        found = self.values.get("properties")
        return found if isinstance(found, dict) else {}


def wants_p2p(config: Config, environ: Mapping[str, str]) -> bool:
    """Return whether P2PDMA is switched on, in the configuration or by the variable."""
    variable = environ.get("CUFILE_USE_PCIP2PDMA", "").lower()
    return config.properties.get("use_pci_p2pdma") is True or variable in ("1", "true", "on", "yes")


def read_config(tree: Tree, environ: Mapping[str, str]) -> Config:
    """The configuration of cuFile: that of ``CUFILE_ENV_PATH_JSON``, else /etc/cufile.json."""
    path = environ.get("CUFILE_ENV_PATH_JSON") or "/etc/cufile.json"
    text = tree.text(path, _CONFIG_LIMIT_BYTES)
    if text is None:
        return Config(path, None, {}, "")
    values, error = parse_config(text)
    return Config(path, text, values, error)


def parse_config(text: str) -> tuple[dict[str, Any], str]:
    """Parse JSON with ``//`` and ``/* */`` comments: the values and "", or nothing and what is wrong."""
    # Strings are matched first, so that a // inside one stays.
    plain = _TOKEN.sub(lambda match: match[0] if match[0].startswith('"') else " ", text)
    try:
        values = json.loads(plain)
    except (ValueError, RecursionError) as error:
        return {}, str(error) or type(error).__name__
    return (values, "") if isinstance(values, dict) else ({}, "it is no JSON object")
