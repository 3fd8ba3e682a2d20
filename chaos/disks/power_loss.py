"""The files of a disk after a power loss: every synced byte, and a random part of the others.

POSIX promises no more than this: of the bytes written to a file since its last sync, any sectors may survive,
with zeros between them; of the names created, renamed and removed in a directory since its last sync, the
first few survive, a different number in each directory. A rename is atomic.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Protocol

from chaos.disks.disk import Cut, Link, Sync, Unlink, Write

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from chaos.disks.disk import Inode, Operation

SECTOR = 512

Tree = dict[str, "Tree | bytes"]


class Luck(Protocol):
    """Decides which unsynced changes survive."""

    def keeps_name(self, number: int, directory: Inode) -> bool:
        """Whether the operation with this number on the names in a directory holds."""
        ...

    def keeps_sector(self) -> bool:
        """Whether the next sector of an unsynced write is there."""
        ...

    def keeps_size(self) -> bool:
        """Whether a file has the size that it was written to, with zeros where sectors are missing."""
        ...


@dataclass(frozen=True)
class _Always:
    names: bool
    data: bool

    def keeps_name(self, number: int, directory: Inode) -> bool:
        del number, directory
        return self.names

    def keeps_sector(self) -> bool:
        return self.data

    def keeps_size(self) -> bool:
        return self.data


NOTHING: Luck = _Always(names=False, data=False)
"""Only synced changes survive."""
EVERYTHING: Luck = _Always(names=True, data=True)
"""A kill of the process: the system still writes all of it."""
NAMES_ONLY: Luck = _Always(names=True, data=False)
"""Files are there, but empty since their last sync."""


@dataclass
class Chance:
    """Any sectors, any first part of a directory's changes; decided by a seed alone."""

    seed: int
    _random: Random = field(init=False)
    _kept: dict[int, bool] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)  # noqa: S311  no secrets
        self._share = self._random.choice((0.1, 0.5, 0.9))

    def keeps_name(self, number: int, directory: Inode) -> bool:
        """Once one is lost, the later ones in the same directory are lost too."""
        del number
        kept = self._kept.get(id(directory), True) and self._random.random() < 0.8
        self._kept[id(directory)] = kept
        return kept

    def keeps_sector(self) -> bool:
        return self._random.random() < self._share

    def keeps_size(self) -> bool:
        return self._random.random() < 0.5


def survivors(journal: Sequence[Operation], at: int, base: Inode, luck: Luck) -> Tree:
    """The files below `base` after a power loss before the operation numbered `at`."""
    left = _Left(luck, journal[:at])
    for number, operation in enumerate(journal[:at]):
        left.apply(number, operation)
    return left.tree(base)


def write_tree(tree: Tree, directory: Path) -> None:
    """Write the files into an empty directory."""
    for name, content in tree.items():
        if isinstance(content, dict):
            (directory / name).mkdir()
            write_tree(content, directory / name)
        else:
            (directory / name).write_bytes(content)


def read_tree(directory: Path) -> Tree:
    """The files of a directory."""
    return {
        path.name: read_tree(path) if path.is_dir() else path.read_bytes()
        for path in directory.iterdir()
    }


class _Left:
    """The files as they are after some of the operations."""

    def __init__(self, luck: Luck, journal: Sequence[Operation]) -> None:
        self._luck = luck
        self._synced: dict[Inode, int] = {}
        for each in journal:
            if isinstance(each, Sync):
                self._synced[each.inode] = max(each.until, self._synced.get(each.inode, 0))
        self._names: dict[Inode, dict[str, Inode]] = defaultdict(dict)
        self._contents: dict[Inode, bytearray] = defaultdict(bytearray)

    def apply(self, number: int, operation: Operation) -> None:
        """Do what holds of it."""
        match operation:
            case Write(inode, position, data):
                if self._is_synced(number, inode):
                    _put(self._contents[inode], position, data)
                else:
                    _tear(self._contents[inode], position, data, self._luck)
            case Cut(inode, size):
                if self._is_synced(number, inode) or self._luck.keeps_size():
                    content = self._contents[inode]
                    del content[size:]
                    content += bytes(size - len(content))
            case Link(directory, name, inode, source):
                if self._holds(number, directory, *(source[:1] if source else ())):
                    self._names[directory][name] = inode
                    if source and self._names[source[0]].get(source[1]) is inode:
                        del self._names[source[0]][source[1]]
            case Unlink(directory, name):
                if self._holds(number, directory):
                    self._names[directory].pop(name, None)
            case Sync():
                pass

    def tree(self, directory: Inode) -> Tree:
        return {
            name: self.tree(each) if each.is_directory else bytes(self._contents[each])
            for name, each in self._names[directory].items()
        }

    def _is_synced(self, number: int, inode: Inode) -> bool:
        return number < self._synced.get(inode, 0)

    def _holds(self, number: int, *directories: Inode) -> bool:
        """Whether names were changed for good: a move is, as soon as one of two directories was synced."""
        if any(self._is_synced(number, each) for each in directories):
            return True
        kept = [self._luck.keeps_name(number, each) for each in directories]
        return all(kept)


def _put(content: bytearray, position: int, data: bytes) -> None:
    content += bytes(max(0, position - len(content)))
    content[position : position + len(data)] = data


def _tear(content: bytearray, position: int, data: bytes, luck: Luck) -> None:
    start, end = position, position + len(data)
    while start < end:
        stop = min(end, (start // SECTOR + 1) * SECTOR)
        if luck.keeps_sector():
            _put(content, start, data[start - position : stop - position])
        start = stop
    if luck.keeps_size():
        content += bytes(max(0, end - len(content)))
