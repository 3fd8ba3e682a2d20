"""The broker's data directory: one broker at a time, whose it is, and whether it was left in order.

lock       held while a broker runs; contains its process id
meta.json  the cluster id, made at the first start
clean      exists while no broker runs and the last one stopped in an orderly way
topics/    see broker.topics
"""

from __future__ import annotations

import fcntl
import os
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from broker.errors import BrokerError
from broker.files import write_durably
from broker.log.files import sync_directory

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DataDirectory"]

_FORMAT = 1


class _Meta(msgspec.Struct, frozen=True):
    format: int
    cluster_id: str


class DataDirectory:
    """An opened data directory. Raises BrokerError when it cannot be used."""

    def __init__(self, path: Path) -> None:
        """Create it if it is missing, lock it, and take away the mark of an orderly stop."""
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise BrokerError(f"the data directory {path} cannot be used: {error}") from error
        try:
            self._take_lock()
            self.cluster_id = self._read_meta().cluster_id
            self.was_clean = self._clean_mark.exists()
            self._clean_mark.unlink(missing_ok=True)
            sync_directory(path)
        except BaseException:
            os.close(self._lock)
            raise

    def close(self, *, clean: bool) -> None:
        """Release the directory; `clean`: everything in it is complete and on disk."""
        if clean:
            write_durably(self._clean_mark, b"")
        os.close(self._lock)

    @property
    def _clean_mark(self) -> Path:
        return self.path / "clean"

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._lock, 32, 0).decode(errors="replace").strip()
            raise BrokerError(
                f"the data directory {self.path} is in use by another broker (process {owner or '?'});"
                " stop that one, or choose another directory"
            ) from None
        os.truncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _read_meta(self) -> _Meta:
        path = self.path / "meta.json"
        try:
            meta = msgspec.json.decode(path.read_bytes(), type=_Meta)
        except FileNotFoundError:
            meta = _Meta(_FORMAT, urlsafe_b64encode(uuid4().bytes).decode().rstrip("="))
            write_durably(path, msgspec.json.encode(meta))
        except msgspec.DecodeError as error:
            raise BrokerError(f"{path} is not a broker's: {error}") from error
        if meta.format != _FORMAT:
            raise BrokerError(
                f"{self.path} was written in format {meta.format}, this broker knows {_FORMAT};"
                " use the version of kmr that wrote it"
            )
        return meta
