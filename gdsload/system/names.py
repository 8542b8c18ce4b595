"""Names that users get wrong: refused, with the one that they meant and all that there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from gdsload.errors import OptionError

__all__ = ["check_list", "check_names"]


def check_list(what: str, given: object) -> None:
    """Refuse a text where a list of names is meant: its letters would be the names.

    Args:
        what: whose value it is: ``"fields"``.
        given: the value.

    Raises:
        OptionError: if it is a text.
    """
    if isinstance(given, str):
        raise OptionError(f"{what} is the text {given!r}", remedy=f"Pass a list: {what}=[{given!r}].")


def check_names(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse the first option that there is not.

    Args:
        what: what has the options: ``"DataLoader"``.
        given: the names that were given.
        known: those that there are.

    Raises:
        OptionError: if there is one that there is not.
    """
    listed = sorted(set(known))
    for name in given:
        if name not in listed:
            near = difflib.get_close_matches(name, listed, 1)
            meant = f"Did you mean {near[0]!r}? " if near else ""
            there = f"Its options are {', '.join(listed)}." if listed else "It has none."
            raise OptionError(f"{what} has no option {name!r:.200}", remedy=meant + there)
