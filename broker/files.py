"""Files for people to read that are replaced as a whole (`broker.log.files` has the sealed ones)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

import msgspec
from crc32c import crc32c

from broker.log.files import TEMPORARY, sync_directory

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Checked", "read_checked", "write_checked", "write_durably"]


class Checked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a file that is believed only if its `checksum` is right, or left out by hand."""

    checksum: str = ""


Content = TypeVar("Content", bound=Checked)


def write_checked(path: Path, content: Checked) -> None:
    """Create or replace a file, as `write_durably`, with its checksum in it."""
    sealed = msgspec.structs.replace(content, checksum=_checksum(content))
    write_durably(path, msgspec.json.encode(sealed))


def read_checked(path: Path, kind: type[Content]) -> Content:
    """What `write_checked` wrote. Raises OSError, and ValueError that says what is wrong with it."""
    try:
        content = msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    if content.checksum and content.checksum != _checksum(content):
        raise ValueError(
            "its content does not match its checksum: it is damaged; or, if somebody changed it on"
            " purpose, the checksum has to be taken out"
        )
    return content


def write_durably(path: Path, data: bytes) -> None:
    """Create or replace a file: after a crash it has its old content or the new one."""
    beside = path.with_name(path.name + TEMPORARY)
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_directory(path.parent)


def _checksum(content: Checked) -> str:
    return f"{crc32c(msgspec.json.encode(msgspec.structs.replace(content, checksum=''))):08x}"
