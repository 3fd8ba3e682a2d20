"""Small files that are replaced as a whole, each with a checksum: a torn one is never believed."""

from __future__ import annotations

import contextlib
import os
import struct
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from broker.log.errors import LogCorrupt

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "DELETED",
    "TEMPORARY",
    "UNSYNCED_FILE",
    "make_directory",
    "mark_unsynced",
    "read_sealed",
    "sync_directory",
    "write_sealed",
]

TEMPORARY: Final = ".tmp"
"""Suffix of a file that was being written; whoever finds one after a crash may delete it."""
DELETED: Final = ".deleted"
"""Suffix of what was being deleted; whoever finds it after a crash may delete the rest."""
UNSYNCED_FILE: Final = "unsynced"
"""Name of a file in a log's directory: see `mark_unsynced`."""
_SEAL: Final = struct.Struct(">I")


def write_sealed(path: Path, payload: bytes, *, durable: bool) -> None:
    """Replaces the file at once, never in part; `durable`: it survives a power loss from now on."""
    temporary = path.with_name(path.name + TEMPORARY)
    with temporary.open("wb") as file:
        file.write(payload + _SEAL.pack(crc32c(payload)))
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if durable:
        sync_directory(path.parent)


def read_sealed(path: Path) -> bytes | None:
    """What was written, or None if there is no such file. Raises `LogCorrupt` if it is damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    payload = data[: -_SEAL.size]
    if len(data) < _SEAL.size or data[-_SEAL.size :] != _SEAL.pack(crc32c(payload)):
        raise LogCorrupt(path, 0, "its checksum does not match its content")
    return payload


def make_directory(directory: Path) -> None:
    """Makes it, with those that it lies in, if it is missing; from now on it survives a power loss."""
    missing = [each for each in directory.parents if not each.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for made in (directory, *missing):
        with contextlib.suppress(PermissionError):  # somebody else made it, long ago
            sync_directory(made.parent)


def mark_unsynced(directory: Path) -> None:
    """Notes, for who opens the log after this process, that a sync of its files has failed.

    The system then takes its memory of them for what is on disk, which it is not: they read as if
    nothing had happened, and a later sync succeeds without doing anything. Whoever finds the mark
    must write them again. It need not survive a power loss: then they read as they are on disk.
    """
    with contextlib.suppress(OSError):
        (directory / UNSYNCED_FILE).touch()


def sync_directory(directory: Path) -> None:
    """Makes the names of the files in `directory` survive a power loss."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
