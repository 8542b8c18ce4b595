"""Trees of gdsload: the checked-out one, a folder, or what git has by a name."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CHECKED_OUT", "Tree", "TreeError", "opened"]

CHECKED_OUT = Path(__file__).resolve().parents[2]
_PACKAGE = "gdsload"


class TreeError(Exception):
    """There is no such tree; says why."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of gdsload.

    Attributes:
        name: ``"now"`` or ``"before"``.
        packages: a folder with nothing but a link to its package, so that nothing else is imported from the tree.
        commit: what git calls it, ``-dirty`` if files differ from that; or that git does not know it.
    """

    name: str
    packages: Path
    commit: str

    @property
    def file(self) -> Path:
        """The value of `gdsload.__file__` in a process that has imported this tree's package."""
        return self.packages / _PACKAGE / "__init__.py"


@contextmanager
def opened(where: str, now: Path = CHECKED_OUT) -> Iterator[tuple[Tree, Tree]]:
    """The checked-out tree and another one.

    Args:
        where: a folder that has the package ``gdsload``, or a git ref of the checked-out tree's repository, which is
            checked out into a temporary worktree.
        now: the checked-out tree.

    Raises:
        TreeError: if it is neither.
    """
    with tempfile.TemporaryDirectory(prefix="gdsload-trees-") as folder:
        place = Path(folder)
        with _folder_of(where, now, place / "worktree") as other:
            yield _linked("now", now, place), _linked("before", other, place)


@contextmanager
def _folder_of(where: str, now: Path, place: Path) -> Iterator[Path]:
    folder = Path(where).resolve()
    if (folder / _PACKAGE / "__init__.py").is_file():
        yield folder
        return
    try:
        commit = _git(now, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{where}^{{commit}}")
    except TreeError:
        what = f"a folder without {_PACKAGE}/__init__.py" if folder.is_dir() else "no folder"
        raise TreeError(f"{where} is {what}, and no commit of {now}") from None
    _git(now, "worktree", "add", "--detach", "--quiet", str(place), commit)
    try:
        if not (place / _PACKAGE / "__init__.py").is_file():
            raise TreeError(f"the commit {where} has no {_PACKAGE}/__init__.py")
        yield place
    finally:
        _git(now, "worktree", "remove", "--force", str(place))


def _linked(name: str, tree: Path, place: Path) -> Tree:
    packages = place / name
    packages.mkdir()
    (packages / _PACKAGE).symlink_to(tree / _PACKAGE, target_is_directory=True)
    return Tree(name, packages, _commit(tree))


def _commit(tree: Path) -> str:
    try:
        if Path(_git(tree, "rev-parse", "--show-toplevel")) != tree:  # an installed package inside some repository
            return "not in git"
        return _git(tree, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    except TreeError:
        return "not in git"


def _git(tree: Path, *arguments: str) -> str:
    found = subprocess.run(["git", "-C", str(tree), *arguments], capture_output=True, text=True, check=False)
    if found.returncode:
        raise TreeError(f"git {arguments[0]}: {found.stderr.strip()}")
    return found.stdout.strip()
