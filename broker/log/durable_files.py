"""Files that are replaced atomically: after a crash a file has its old content or the new one, whole.

- `replace_file` is the one atomic write.
- A sealed file is binary and ends with a checksum of its content (checkpoints, indexes, snapshots).
- A checked file is JSON that an operator may read and edit; its checksum is one of its fields.
"""

from __future__ import annotations

import contextlib
import os
import struct
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from crc32c import crc32c

from .results import LogCorrupt

if TYPE_CHECKING:
    from pathlib import Path


TEMPORARY: Final = ".tmp"
"""Suffix of a file that is being written; after a crash it can be deleted."""
DELETED: Final = ".deleted"
"""Suffix of a directory that is being deleted; after a crash the rest can be deleted."""
UNSYNCED_FILE: Final = "unsynced"
"""Name of a file in a log's directory: see `mark_unsynced`."""
_SEAL: Final = struct.Struct(">I")


def replace_file(path: Path, data: bytes, *, durable: bool = True, mode: int = 0o666) -> None:
    """Create or replace a file atomically.

    Raises OSError: then the file has its old content, or its new one if only the directory's sync failed.

    Args:
        path: the file; it is written beside this path first, with the suffix `TEMPORARY`.
        data: the new content.
        durable: sync the file and its directory, so that the content survives a power loss.
        mode: permissions of the file, reduced by the process's umask.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    temporary.unlink(missing_ok=True)  # one left by a crash may have other permissions
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if durable:
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Sync the names of the files in `directory`, so that they survive a power loss."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Create a directory and its missing parents, so that they survive a power loss."""
    missing = [each for each in directory.parents if not each.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for made in (directory, *missing):
        # Permission is only missing for a parent of another user's, which existed before.
        with contextlib.suppress(PermissionError):
            sync_directory(made.parent)


def mark_unsynced(directory: Path) -> None:
    """Mark a log whose files failed to sync, for the process that opens it next.

    After a failed sync the system's page cache may differ from the disk: the files read as if nothing had
    happened, and a later sync succeeds without writing. Recovery therefore writes a marked log's files
    again. The mark need not survive a power loss: then the files read as they are on disk.
    """
    with contextlib.suppress(OSError):
        (directory / UNSYNCED_FILE).touch()


def write_sealed(path: Path, payload: bytes, *, durable: bool) -> None:
    """Replace a sealed file; `durable` as in `replace_file`."""
    replace_file(path, payload + _SEAL.pack(crc32c(payload)), durable=durable)


def read_sealed(path: Path) -> bytes | None:
    """Return the content of a sealed file, None if it is missing. Raises `LogCorrupt` if it is damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    payload = data[: -_SEAL.size]
    if len(data) < _SEAL.size or data[-_SEAL.size :] != _SEAL.pack(crc32c(payload)):
        raise LogCorrupt(path, 0, "its checksum does not match its content")
    return payload


class ChecksummedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a checked file; an operator who edits the file removes the `checksum`."""

    checksum: str = ""


Content = TypeVar("Content", bound=ChecksummedFile)


def write_checked(path: Path, content: ChecksummedFile) -> None:
    """Create or replace a checked file durably."""
    sealed = msgspec.structs.replace(content, checksum=_checksum(content))
    replace_file(path, msgspec.json.encode(sealed))


def read_checked(path: Path, kind: type[Content]) -> Content:
    """Return the content of a checked file. Raises OSError, or ValueError if it is malformed or damaged."""
    try:
        content = msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    if content.checksum and content.checksum != _checksum(content):
        raise ValueError(
            "its content does not match its checksum: it is damaged; if you edited it, remove the checksum"
        )
    return content


def _checksum(content: ChecksummedFile) -> str:
    return f"{crc32c(msgspec.json.encode(msgspec.structs.replace(content, checksum=''))):08x}"
