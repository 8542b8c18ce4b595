"""Names that users get wrong: refused, with the likely one, or all known ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from gdsload.errors import OptionError


def check_list(what: str, given: object) -> None:
    """Refuse a text in place of a list of names: its letters would be the names.

    Raises:
        OptionError: if it is a text.
    """
    if isinstance(given, str):
        raise OptionError(f"is the text {given!r}", option=what, remedy=f"Pass a list: `{what}=[{given!r}]`.")


def check_names(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse the first name that is not known; `what` has the options: ``"DataLoader"``.

    Raises:
        OptionError: if one is not known.
    """
    listed = sorted(set(known))
    for name in given:
        if name not in listed:
            near = difflib.get_close_matches(name, listed, 1)
            there = f"Its options are {', '.join(f'`{one}`' for one in listed)}." if listed else "It has none."
            meant = f"Did you mean {near[0]!r}?" if near else there
            raise OptionError(f"{what} has no option {name!r:.200}", remedy=meant)
