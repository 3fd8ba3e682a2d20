"""The files of users and of access rules: private, replaced as a whole, read again when they change."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec
import structlog

from ..errors import BrokerError
from ..log.durable_files import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

logger = structlog.get_logger(__name__)

Content = TypeVar("Content")

_OWNER_ONLY = 0o600


@dataclass(frozen=True)
class PrivateFormat(Generic[Content]):
    """A kind of file that only its owner can read.

    Attributes:
        title: what messages call it.
        parse: returns the content of such a file; raises ValueError.
        document: returns what is written, as JSON, for the content.
        empty: the content of a new file.
    """

    title: str
    parse: Callable[[bytes], Content]
    document: Callable[[Content], object]
    empty: Content

    def read(self, path: Path) -> Content:
        """Return the content of a file. Raise BrokerError."""
        try:
            return self.parse(path.read_bytes())
        except OSError as error:
            raise BrokerError(f"{self.title} {path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise BrokerError(f"{self.title} {path} is invalid: {error}") from error

    def write(self, path: Path, content: Content) -> None:
        """Create or replace a file, mode 0600; a crash leaves the old or the new one. Raise BrokerError."""
        data = msgspec.json.format(msgspec.json.encode(self.document(content))) + b"\n"
        try:
            replace_file(path, data, mode=_OWNER_ONLY)
        except OSError as error:
            raise BrokerError(f"{self.title} {path} cannot be written: {error.strerror}") from error

    def change(
        self, path: Path, change: Callable[[Content], Content], *, create: bool = False
    ) -> None:
        """Replace the content of a file by what `change` returns for it.

        `create`: a missing file is empty. Raise BrokerError if the file cannot be read or written; then it
        stays as it is.
        """
        self.write(path, change(self.empty if create and not path.exists() else self.read(path)))


class WatchedFile(Generic[Content]):
    """The content of a file that may be replaced at any time; safe to use from any thread.

    A file that becomes unreadable is reported once, and the content that was read last stays in force.
    """

    def __init__(
        self, path: Path, file_format: PrivateFormat[Content], *, interval: float = 0.0
    ) -> None:
        """Read the file; check it for changes at most every `interval` seconds. Raise BrokerError."""
        self._path = path
        self._format = file_format
        self._interval = interval
        self._checking = threading.Lock()  # a slow reader must not overwrite newer content
        self._checked_at = time.monotonic()
        self._reported = ""
        """The reason of the last failure, which is logged once."""
        self._version = self._stat()
        self._content = file_format.read(path)

    @property
    def content(self) -> Content:
        """The content, at most `interval` seconds old."""
        if time.monotonic() - self._checked_at >= self._interval:
            self.check()
        return self._content

    def check(self) -> None:
        """Check the file for changes now."""
        with self._checking:
            self._checked_at = time.monotonic()
            version = self._stat()
            if version == self._version:
                return
            try:
                self._content = self._format.read(self._path)
            except BrokerError as error:
                if str(error) != self._reported:
                    self._reported = str(error)
                    logger.error(
                        "file unreadable, its last content stays in force", reason=str(error)
                    )
                if isinstance(error.__cause__, OSError):
                    return  # it may have changed all the same: the next check reads it again
            else:
                self._reported = ""
                logger.info("file read again", file=str(self._path))
            self._version = version

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino
