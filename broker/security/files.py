"""Files that say who may do what: private, replaced as a whole, read again when they change."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

from broker.errors import BrokerError
from broker.log.files import TEMPORARY, sync_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["WatchedFile", "read_private", "write_private"]

logger = structlog.get_logger(__name__)

Content = TypeVar("Content")

_OWNER_ONLY = 0o600


def read_private(path: Path, parse: Callable[[bytes], Content], what: str) -> Content:
    """What is in a file. Raises BrokerError that names it; `what` says what it should be."""
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise BrokerError(f"{what} {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BrokerError(f"{what} {path} makes no sense: {error}") from error


def write_private(path: Path, data: bytes) -> None:
    """Create or replace a file that only its owner may read; a crash leaves the old one or the new."""
    beside = path.with_name(path.name + TEMPORARY)
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_directory(path.parent)


class WatchedFile(Generic[Content]):
    """The content of a file that may be replaced at any time.

    A file that cannot be read any more is reported once, and what it said last goes on to hold. Any
    thread may ask for it.
    """

    def __init__(
        self, path: Path, parse: Callable[[bytes], Content], what: str, *, interval: float = 0.0
    ) -> None:
        """Read it; it is looked at again at most every `interval` seconds. Raises BrokerError."""
        self._path = path
        self._parse = parse
        self._what = what
        self._interval = interval
        self._looking = threading.Lock()  # who read it first must not be the last to say so
        self._looked_at = time.monotonic()
        self._version = self._stat()
        self._content = read_private(path, parse, what)

    @property
    def content(self) -> Content:
        """What the file says now."""
        if time.monotonic() - self._looked_at >= self._interval:
            self.look()
        return self._content

    def look(self) -> None:
        """Look at the file now, however short a time ago it was looked at."""
        with self._looking:
            self._looked_at = time.monotonic()
            version = self._stat()
            if version != self._version:
                self._version = version
                self._read_again()

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _read_again(self) -> None:
        try:
            self._content = read_private(self._path, self._parse, self._what)
        except BrokerError as error:
            logger.error("what was read last goes on to hold", reason=str(error))
        else:
            logger.info("read again", file=str(self._path))
