"""The pages of an LMDB file: a B+ tree of keys and values, read without the library and without its lock file.

What the library maps and believes is looked at here: pages, places and lengths are those of a file that may be damaged.
What is wrong is a `ValueError`, for those who know the file's name to hand on. The layout is that of mdb.c (LMDB 0.9,
data version 1), written by machines of 64 bits, lowest byte first.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["LmdbPages", "LmdbTree", "Node"]

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_NONE = 2**64 - 1
_HEADER = struct.Struct("<QHHHH")  # number of the page, padding, flags, end of the places of nodes, begin of the nodes
_META = struct.Struct("<IIQQ")  # magic, version, address and length of the mapping
_TREE = struct.Struct("<IHHQQQQQ")  # padding, flags, depth, pages of three kinds, entries, root
_NODE = struct.Struct("<HHHH")
_BRANCH, _LEAF, _OVERFLOW, _IS_META = 1, 2, 4, 8
_ELSEWHERE, _DATABASE, _DUPLICATES = 1, 2, 4  # of a node: its value is on pages of its own, a database, several values
_DUPSORT = 4
_MAX_DEPTH = 32
_PAGE_SIZES = {2**bits for bits in range(8, 17)}


class LmdbTree(NamedTuple):
    """A database of the file.

    Attributes:
        flags: what it holds.
        depth: pages from its root to a leaf.
        entries: how many keys it has.
        root: the number of its first page.
    """

    flags: int
    depth: int
    entries: int
    root: int

    @property
    def has_duplicates(self) -> bool:
        """Whether a key may have several values."""
        return bool(self.flags & _DUPSORT)


@dataclass(frozen=True, slots=True)
class Node:
    """A key and what belongs to it.

    Attributes:
        key: the key.
        content: the value, or where it is.
        nbytes: how long the value is.
        flags: what `content` is.
    """

    key: bytes
    content: bytes
    nbytes: int
    flags: int

    @property
    def tree(self) -> LmdbTree | None:
        """The database that the value is, if it is one."""
        if not self.flags & _DATABASE:
            return None
        if self.nbytes != _TREE.size or self.flags & (_ELSEWHERE | _DUPLICATES):
            raise ValueError(f"the database {self.key!r:.100} has no description")
        return _tree(self.content, 0)


class LmdbPages:
    """The pages of a file, as they were after its last finished transaction.

    Args:
        fd: the file, open for reading for as long as this is used.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._file_bytes = os.fstat(fd).st_size
        self.page_bytes = _page_bytes(self._bytes(0, _HEADER.size + _META.size + _TREE.size))
        self.pages = self._file_bytes // self.page_bytes
        metas = [found for number in range(2) if (found := self._meta(number)) is not None]
        if not metas:
            raise ValueError("neither of its two first pages describes it")
        _, last, self.main = max(metas, key=lambda meta: meta[0])
        if last >= self.pages:
            raise ValueError(f"it has {last + 1} pages, but only {self.pages} are there")

    def _meta(self, number: int) -> tuple[int, int, LmdbTree] | None:
        """Transaction, last page and main database that one of the first two pages tells of."""
        page = self._bytes(number * self.page_bytes, self.page_bytes)
        magic, version, _, _ = _META.unpack_from(page, _HEADER.size)
        if (magic, version) != (_MAGIC, _VERSION) or not _HEADER.unpack_from(page)[2] & _IS_META:
            return None
        place = _HEADER.size + _META.size + _TREE.size  # behind the tree of free pages
        last, transaction = struct.unpack_from("<QQ", page, place + _TREE.size)
        return transaction, last, _tree(page, place)

    def leaves(self, tree: LmdbTree) -> Iterator[int]:
        """The numbers of the pages that have a tree's keys, in their order."""
        if tree.root == _NONE:
            return
        if not 1 <= tree.depth <= _MAX_DEPTH:
            raise ValueError(f"a tree has {tree.depth} layers")
        left = self.pages  # a tree that comes back to itself would never end
        below = [iter((tree.root,))]
        while below:
            number = next(below[-1], None)
            if number is None:
                below.pop()
                continue
            if (left := left - 1) < 0:
                raise ValueError("its tree has more pages than there are")
            if len(below) == tree.depth:
                yield number
            else:
                page = self._page(number, _BRANCH)
                below.append(iter([_child(page, place) for place in _places(page)]))

    def count(self, number: int) -> int:
        """How many keys a leaf has."""
        return len(_places(self._page(number, _LEAF, whole=False), checked=False))

    def nodes(self, number: int) -> list[Node]:
        """The keys of a leaf, and what belongs to each."""
        page = self._page(number, _LEAF)
        return [_node(page, place) for place in _places(page)]

    def value(self, node: Node) -> bytes:
        """The value of a key."""
        if node.flags & (_DATABASE | _DUPLICATES):
            raise ValueError(f"{node.key!r:.100} is no single value")
        if not node.flags & _ELSEWHERE:
            return node.content
        number = int.from_bytes(node.content, "little")
        self._page(number, _OVERFLOW, whole=False)
        return self._bytes(number * self.page_bytes + _HEADER.size, node.nbytes)

    def find(self, name: bytes) -> LmdbTree | None:
        """The database of a name."""
        for leaf in self.leaves(self.main):
            for node in self.nodes(leaf):
                if node.key == name:
                    return node.tree
        return None

    def _page(self, number: int, kind: int, *, whole: bool = True) -> bytes:
        if not 2 <= number < self.pages:
            raise ValueError(f"page {number} is to be read, but there are {self.pages}")
        page = self._bytes(number * self.page_bytes, self.page_bytes if whole else _HEADER.size)
        itself, _, flags, _, _ = _HEADER.unpack_from(page)
        if itself != number or flags & (_BRANCH | _LEAF | _OVERFLOW | _IS_META) != kind:
            raise ValueError(f"page {number} is not what it must be")
        return page

    def _bytes(self, offset: int, count: int) -> bytes:
        if offset + count > self._file_bytes:
            raise ValueError(f"it ends at byte {self._file_bytes}, before byte {offset + count - 1}")
        found = os.pread(self._fd, count, offset)
        while len(found) < count:  # more than 2 GiB come in pieces
            piece = os.pread(self._fd, count - len(found), offset + len(found))
            if not piece:
                raise ValueError(f"it ends at byte {offset + len(found)}")
            found += piece
        return found


def _page_bytes(start: bytes) -> int:
    magic, version, _, _ = _META.unpack_from(start, _HEADER.size)
    if magic != _MAGIC:
        raise ValueError("it does not begin as an LMDB file of a 64-bit machine does")
    if version != _VERSION:
        raise ValueError(f"it is of version {version}, and version {_VERSION} can be read")
    found = int(_TREE.unpack_from(start, _HEADER.size + _META.size)[0])
    if found not in _PAGE_SIZES:
        raise ValueError(f"its pages have {found} bytes")
    return found


def _tree(content: bytes, place: int) -> LmdbTree:
    _, flags, depth, _, _, _, entries, root = _TREE.unpack_from(content, place)
    return LmdbTree(flags, depth, entries, root)


def _places(page: bytes, *, checked: bool = True) -> tuple[int, ...]:
    """Where the nodes of a page begin."""
    lower, upper = _HEADER.unpack_from(page)[3:]
    count: int = (lower - _HEADER.size) // 2
    if count < 0 or lower % 2 or lower > upper:
        raise ValueError(f"a page has places of nodes up to byte {lower}, and nodes from byte {upper} on")
    if not checked:
        return (0,) * count
    if upper > len(page):
        raise ValueError(f"a page has nodes from byte {upper} on")
    places: tuple[int, ...] = struct.unpack_from(f"<{count}H", page, _HEADER.size)
    if places and not upper <= min(places) <= max(places) <= len(page) - _NODE.size:
        raise ValueError("a node lies outside of its page")
    return places


def _child(page: bytes, place: int) -> int:
    low, middle, high, _ = _NODE.unpack_from(page, place)
    return int(low | middle << 16 | high << 32)


def _node(page: bytes, place: int) -> Node:
    low, high, flags, key_bytes = _NODE.unpack_from(page, place)
    nbytes = low | high << 16
    begin = place + _NODE.size + key_bytes
    end = begin + (8 if flags & _ELSEWHERE else nbytes)
    if end > len(page):
        raise ValueError("a node ends outside of its page")
    return Node(page[place + _NODE.size : begin], page[begin:end], nbytes, flags)
