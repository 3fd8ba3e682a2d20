"""The broker's data directory: its lock, format, cluster id and producer ids; was the last stop clean?

lock          locked while a broker runs; contains its process id
meta.json     format and cluster id, written at the first start
clean         exists while no broker runs, if the last one has written and synced everything
producer-ids  the end of the reserved ids for idempotent producers
secret        random bytes, written at the first start, which only the owner of the file can read
topics/       see `kmr.broker.topics.topics`
"""

from __future__ import annotations

import fcntl
import os
import threading
from base64 import urlsafe_b64encode
from contextlib import contextmanager
from secrets import token_bytes
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from anyio import to_thread

from ..errors import BrokerError
from ..log.durable_files import (
    ChecksummedFile,
    make_directory,
    read_checked,
    read_sealed,
    replace_file,
    sync_directory,
    write_checked,
    write_sealed,
)
from ..log.results import LogCorrupt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


_FORMAT = 1
_META = "meta.json"
_LOCK = "lock"
_SECRET = "secret"  # noqa: S105  the file's name
_SECRET_BYTES: Final = 32
_BLOCK: Final = 1000  # ids that one write reserves; a crash skips at most this many
_NOT_OURS: Final = 2**62  # this broker never assigns ids from here on


class _Meta(ChecksummedFile, frozen=True):
    format: int
    cluster_id: str


class DataDirectory:
    """The data directory of a running broker.

    Attributes:
        path: the directory.
        cluster_id: made at the first start.
        secret: random bytes, made at the first start.
        was_clean: whether the last broker has written and synced everything.
    """

    def __init__(self, path: Path) -> None:
        """Create the directory if it is missing, lock it, and delete `clean`.

        Raises BrokerError if another broker uses it, or it cannot be read or written.
        """
        self.path = path
        try:
            make_directory(path)
            self._lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            self._take_lock()
            self.cluster_id = self._read_or_make_meta().cluster_id
            self.secret = self._read_or_make_secret()
            self.was_clean = self._clean_mark.exists()
            self._clean_mark.unlink(missing_ok=True)
            sync_directory(path)
        except BaseException as error:
            os.close(self._lock)
            if isinstance(error, OSError):
                raise _unusable(path, error) from error
            raise

    def close(self, *, clean: bool) -> None:
        """Unlock the directory; `clean`: all its files are complete and on disk.

        Raises OSError if `clean` cannot be written; the directory is unlocked all the same.
        """
        try:
            if clean:
                replace_file(self._clean_mark, b"")
        finally:
            os.close(self._lock)

    @property
    def _clean_mark(self) -> Path:
        return self.path / "clean"

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BrokerError(
                f"the data directory {self.path} is in use by another broker (process"
                f" {_owner(self._lock)}); stop that one, or choose another directory"
            ) from None
        os.truncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _read_or_make_meta(self) -> _Meta:
        if not (self.path / _META).exists():
            cluster_id = urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
            write_checked(self.path / _META, _Meta(format=_FORMAT, cluster_id=cluster_id))
        return read_meta(self.path)

    def _read_or_make_secret(self) -> bytes:
        path = self.path / _SECRET
        if not path.exists():
            replace_file(path, token_bytes(_SECRET_BYTES), mode=0o600)
        return path.read_bytes()


def read_meta(data_dir: Path) -> _Meta:
    """Return the content of `meta.json`. Raises BrokerError if it cannot be used."""
    path = data_dir / _META
    try:
        meta = read_checked(path, _Meta)
    except FileNotFoundError:
        raise BrokerError(f"{data_dir} is not the data directory of a broker") from None
    except (OSError, ValueError) as error:
        raise BrokerError(f"{path} cannot be read: {error}") from error
    if meta.format != _FORMAT:
        raise BrokerError(
            f"{data_dir} has format {meta.format}, this broker reads format {_FORMAT}; use the version of"
            " kmr that wrote it"
        )
    return meta


@contextmanager
def lock_out_brokers(data_dir: Path) -> Iterator[None]:
    """Keep brokers from starting in a data directory, without writing to it.

    Raises BrokerError if a broker is using it.
    """
    try:
        lock = os.open(data_dir / _LOCK, os.O_RDONLY)
    except FileNotFoundError:  # no broker has ever used it
        yield
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BrokerError(
            f"the data directory {data_dir} is in use by a broker (process {_owner(lock)}); stop it,"
            " or examine a copy"
        ) from None
    else:
        yield
    finally:
        os.close(lock)


def _unusable(path: Path, error: OSError) -> BrokerError:
    return BrokerError(f"the data directory {path} cannot be used: {error}")


def _owner(lock: int) -> str:
    return os.pread(lock, 32, 0).decode(errors="replace").strip() or "?"


class ProducerIds:
    """Assign producer ids; a block of ids is reserved on disk before its first one is assigned."""

    def __init__(self, path: Path, *, used: Iterable[int] = ()) -> None:
        """Continue after the ids that are already reserved.

        Args:
            path: file with the end of the reserved ids; created at the first id.
            used: ids found in logs, in case the file is missing: if an id were assigned again, the second
                producer's records would be taken for duplicates.

        Raises:
            LogCorrupt: the file is damaged. Delete it only if no producer is running.
        """
        self._path = path
        self._reserving = threading.Lock()
        payload = read_sealed(path)
        if payload is not None and not payload.isdigit():
            raise LogCorrupt(path, 0, "it does not hold a number")
        if payload is None:
            known = (each + 1 for each in used if each < _NOT_OURS)
            self._next = self._reserved = max(known, default=0)
        else:
            self._next = self._reserved = int(payload)

    async def reserve(self) -> None:
        """Make sure that the caller can call `next` before it awaits. Raises OSError."""
        while self._next == self._reserved:
            await to_thread.run_sync(self._reserve_block)

    def next(self) -> int:
        """Return an id that was never assigned before; call `reserve` before."""
        if self._next == self._reserved:
            raise RuntimeError("no producer id is reserved")
        self._next += 1
        return self._next - 1

    def _reserve_block(self) -> None:
        with self._reserving:
            if self._next == self._reserved:
                reserved = self._reserved + _BLOCK
                write_sealed(self._path, str(reserved).encode(), durable=True)
                self._reserved = reserved
