"""A disk that forgets: journals each change to the files below a directory, and each sync.

    with Disk(root) as disk:
        ...  # a broker works in `root`, in this process
    for at in range(len(disk.journal)):
        write_tree(survivors(disk.journal, at, disk.base, NOTHING), elsewhere)

Inside the context, Python's functions that change files are replaced by ones that also journal their changes
below `root`. They make the changes, except syncs, which are only journaled. `chaos.disks.power_loss` derives
the possible states after a power loss from the journal. `Disk.refuse` makes changes, and reads, fail on
purpose.
"""

from __future__ import annotations

import builtins
import io
import os
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType


@dataclass(eq=False, slots=True)
class Inode:
    """A file or a directory, independent of its names; `entries` of a directory as they are now."""

    is_directory: bool
    entries: dict[str, Inode] = field(default_factory=dict)


class Link(NamedTuple):
    """A name for a file or directory: made, or moved from `source`."""

    directory: Inode
    name: str
    inode: Inode
    source: tuple[Inode, str] | None = None


class Unlink(NamedTuple):
    """A name that was removed, of a file or of an empty directory."""

    directory: Inode
    name: str


class Write(NamedTuple):
    """Bytes written to a file."""

    inode: Inode
    position: int
    data: bytes


class Cut(NamedTuple):
    """A file's new size."""

    inode: Inode
    size: int


class Sync(NamedTuple):
    """The operations before the one numbered `until` on this file or directory are on the disk."""

    inode: Inode
    until: int


Operation = Link | Unlink | Write | Cut | Sync


class Disk:
    """The files below `root`, which must be an empty directory; see the module.

    Attributes:
        root: the directory.
        base: its path in the journal.
        journal: every change in its order.
    """

    def __init__(self, root: Path) -> None:
        if any(root.iterdir()):
            raise ValueError(f"{root} is not empty")
        self.root = root
        self.base = Inode(is_directory=True)
        self.journal: list[Operation] = []
        self._descriptors: dict[int, Inode] = {}
        self._lock = threading.RLock()
        self._refuse: Callable[[str, str], int] | None = None
        self._real: dict[str, Callable[..., Any]] = {}
        self._patches = ExitStack()

    def __enter__(self) -> Self:
        replaced: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "close": self._close,
            "dup": self._dup,
            "preadv": self._preadv,
            "pwrite": self._pwrite,
            "pwritev": self._pwritev,
            "write": partial(self._not_noted, "write"),
            "writev": partial(self._not_noted, "writev"),
            "ftruncate": self._ftruncate,
            "truncate": self._truncate,
            "fsync": self._fsync,
            "fdatasync": self._fsync,
            "rename": self._rename,
            "replace": self._rename,
            "unlink": self._unlink,
            "remove": self._unlink,
            "rmdir": self._rmdir,
            "mkdir": self._mkdir,
        }
        self._real = {name: getattr(os, name) for name in replaced}
        self._real["io.open"] = io.open
        for name, function in replaced.items():
            self._patches.enter_context(patch.object(os, name, function))
        self._patches.enter_context(patch.object(io, "open", self._open_file))
        self._patches.enter_context(patch.object(builtins, "open", self._open_file))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._patches.close()

    @property
    def now(self) -> int:
        """How many operations there were."""
        with self._lock:
            return len(self.journal)

    def sync_all(self) -> None:
        """Make everything that is there durable."""
        with self._lock:
            until, left = len(self.journal), [self.base]
            while left:
                inode = left.pop()
                self.journal.append(Sync(inode, until))
                left += inode.entries.values()

    def refuse(self, refuse: Callable[[str, str], int] | None) -> None:
        """From now on each operation is made only if `refuse(kind, path)` returns 0, else an errno.

        `kind` is read, write, cut, sync, make (a file or directory), rename or remove; `path` is relative
        to `root`. A sync that is refused loses what it should have synced for good, as on Linux: the file
        still reads as before, and a later sync does not help.
        """
        self._refuse = refuse

    # -- replaced functions ------------------------------------------------------------------------

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        with self._lock:
            place = self._place(path, dir_fd)
            found = self._lookup(place) if place is not None else None
            makes = place is not None and bool(flags & os.O_CREAT) and found is None
            if makes:
                self._ask("make", place)
            elif found is not None and flags & os.O_TRUNC:
                self._ask("cut", place)
            descriptor: int = self._real["open"](path, flags, mode, dir_fd=dir_fd)
            if place is None:
                return descriptor
            if makes:
                found = self._make(place, is_directory=False)
            elif found is not None and flags & os.O_TRUNC:
                self.journal.append(Cut(found, 0))
            if found is not None:
                self._descriptors[descriptor] = found
            return descriptor

    def _open_file(self, file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        """Files that are written by Python's file objects: their writes go by `_Raw`."""
        writes = any(each in mode for each in "wax+")
        if not writes and not isinstance(file, int):
            place = self._place(file)
            if place is not None and self._lookup(place) is not None:
                self._ask("read", place)
        if isinstance(file, int) or not writes or self._place(file) is None:
            if isinstance(file, int) and file in self._descriptors and writes:
                return io.BufferedWriter(_Raw(self, file, mode))
            return self._real["io.open"](file, mode, *arguments, **options)
        if "b" not in mode:
            raise NotImplementedError(f"{file} is written as text")
        return io.BufferedWriter(_Raw(self, os.fspath(file), mode, opener=self._open))

    def _close(self, descriptor: int) -> None:
        with self._lock:
            self._descriptors.pop(descriptor, None)
            self._real["close"](descriptor)

    def _dup(self, descriptor: int) -> int:
        with self._lock:
            copy: int = self._real["dup"](descriptor)
            if descriptor in self._descriptors:
                self._descriptors[copy] = self._descriptors[descriptor]
            return copy

    def _preadv(self, descriptor: int, buffers: Any, position: int) -> int:
        if descriptor in self._descriptors:
            self._ask("read", descriptor)
        size: int = self._real["preadv"](descriptor, buffers, position)
        return size

    def _pwrite(self, descriptor: int, data: Any, position: int) -> int:
        return self._pwritev(descriptor, [data], position)

    def _pwritev(self, descriptor: int, buffers: Iterable[Any], position: int) -> int:
        with self._lock:
            inode = self._descriptors.get(descriptor)
            data = b"".join(map(bytes, buffers))
            if inode is not None:
                self._ask("write", descriptor)
            size: int = self._real["pwrite"](descriptor, data, position)
            if inode is not None:
                self.journal.append(Write(inode, position, data[:size]))
            return size

    def _not_noted(self, name: str, descriptor: int, data: Any) -> Any:
        if descriptor in self._descriptors:
            raise NotImplementedError(f"the disk does not take down os.{name}")
        return self._real[name](descriptor, data)

    def _ftruncate(self, descriptor: int, size: int) -> None:
        with self._lock:
            inode = self._descriptors.get(descriptor)
            if inode is not None:
                self._ask("cut", descriptor)
            self._real["ftruncate"](descriptor, size)
            if inode is not None:
                self.journal.append(Cut(inode, size))

    def _truncate(self, path: Any, size: int) -> None:
        if isinstance(path, int):
            self._ftruncate(path, size)
            return
        descriptor = self._open(path, os.O_WRONLY)
        try:
            self._ftruncate(descriptor, size)
        finally:
            self._close(descriptor)

    def _fsync(self, descriptor: int) -> None:
        with self._lock:
            inode = self._descriptors.get(descriptor)
            if inode is None:
                return
            until = len(self.journal)
            try:
                self._ask("sync", descriptor)
            except OSError:
                self._forget(inode)
                raise
        # Others may write meanwhile, which is not part of this sync.
        with self._lock:
            self.journal.append(Sync(inode, until))

    def _rename(
        self,
        source: Any,
        target: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
    ) -> None:
        with self._lock:
            old, new = self._place(source, src_dir_fd), self._place(target, dst_dir_fd)
            if old is not None:
                self._ask("rename", old)
            self._real["replace"](source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            if old is None or new is None:
                if old is not new:
                    raise NotImplementedError(f"{source} is moved across the border of the disk")
                return
            from_directory, into_directory = self._parent(old), self._parent(new)
            inode = from_directory.entries.pop(old[-1])
            into_directory.entries[new[-1]] = inode
            self.journal.append(Link(into_directory, new[-1], inode, (from_directory, old[-1])))

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._remove("unlink", path, dir_fd)

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._remove("rmdir", path, dir_fd)

    def _remove(self, name: str, path: Any, dir_fd: int | None) -> None:
        with self._lock:
            place = self._place(path, dir_fd)
            if place is not None:
                self._ask("remove", place)
            self._real[name](path, dir_fd=dir_fd)
            if place is not None:
                directory = self._parent(place)
                del directory.entries[place[-1]]
                self.journal.append(Unlink(directory, place[-1]))

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        with self._lock:
            place = self._place(path, dir_fd)
            if place is not None and self._lookup(place) is None:
                self._ask("make", place)
            self._real["mkdir"](path, mode, dir_fd=dir_fd)
            if place is not None:
                self._make(place, is_directory=True)

    # -- inside ------------------------------------------------------------------------------------

    def _place(self, path: Any, dir_fd: int | None = None) -> tuple[str, ...] | None:
        """The names from `root` to a path; None if it is elsewhere."""
        if isinstance(path, int):
            return None
        name = os.fsdecode(path)
        base = Path.cwd() if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink()
        try:
            return Path(os.path.normpath(base / name)).relative_to(self.root).parts
        except ValueError:
            return None

    def _lookup(self, place: tuple[str, ...]) -> Inode | None:
        inode: Inode | None = self.base
        for name in place:
            inode = inode.entries.get(name) if inode is not None else None
        return inode

    def _parent(self, place: tuple[str, ...]) -> Inode:
        parent = self._lookup(place[:-1])
        if parent is None:
            raise FileNotFoundError(place)
        return parent

    def _make(self, place: tuple[str, ...], *, is_directory: bool) -> Inode:
        inode, parent = Inode(is_directory), self._parent(place)
        parent.entries[place[-1]] = inode
        self.journal.append(Link(parent, place[-1], inode))
        return inode

    def _ask(self, kind: str, where: tuple[str, ...] | int | None) -> None:
        if self._refuse is None:
            return
        if isinstance(where, int):
            path = Path(f"/proc/self/fd/{where}").readlink()
            name = os.path.relpath(path, self.root)
        else:
            name = "/".join(where or ())
        code = self._refuse(kind, name)
        if code:
            raise OSError(code, os.strerror(code), name)

    def _forget(self, inode: Inode) -> None:
        """Pages that a failed sync leaves in memory never reach the disk."""
        synced = max((each.until for each in self._syncs(inode)), default=0)
        for number in range(synced, len(self.journal)):
            operation = self.journal[number]
            if isinstance(operation, Write) and operation.inode is inode:
                self.journal[number] = operation._replace(data=b"")

    def _syncs(self, inode: Inode) -> Iterable[Sync]:
        return (each for each in self.journal if isinstance(each, Sync) and each.inode is inode)


class _Raw(io.FileIO):
    """A file below a disk's root that is written from its start on."""

    def __init__(self, disk: Disk, file: Any, mode: str, **options: Any) -> None:
        if set(mode) - set("wxb"):
            raise NotImplementedError(f"mode {mode!r}")
        super().__init__(file, mode.replace("b", ""), **options)
        self._disk = disk
        self._descriptor = self.fileno()

    def write(self, data: Any, /) -> int:
        position = self.tell()
        size = self._disk._pwrite(self._descriptor, data, position)  # noqa: SLF001  a part of it
        self.seek(position + size)
        return size

    def close(self) -> None:
        if not self.closed:
            self._disk._descriptors.pop(self._descriptor, None)  # noqa: SLF001
        super().close()
