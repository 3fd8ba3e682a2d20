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
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from broker.errors import BrokerError
from broker.files import Checked, read_checked, write_checked, write_durably
from broker.log.files import make_directory, sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["DataDirectory", "read_meta", "unused"]

_FORMAT = 1
_META = "meta.json"
_LOCK = "lock"


class _Meta(Checked, frozen=True):
    format: int
    cluster_id: str


class DataDirectory:
    """An opened data directory. Raises BrokerError when it cannot be used."""

    def __init__(self, path: Path) -> None:
        """Create it if it is missing, lock it, and take away the mark of an orderly stop."""
        self.path = path
        try:
            make_directory(path)
            self._lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            self._take_lock()
            self.cluster_id = self._read_or_make_meta().cluster_id
            self.was_clean = self._clean_mark.exists()
            self._clean_mark.unlink(missing_ok=True)
            sync_directory(path)
        except BaseException as error:
            os.close(self._lock)
            if isinstance(error, OSError):
                raise _unusable(path, error) from error
            raise

    def close(self, *, clean: bool) -> None:
        """Release the directory; `clean`: everything in it is complete and on disk.

        Raises OSError when it cannot be marked as clean; it is released all the same.
        """
        try:
            if clean:
                write_durably(self._clean_mark, b"")
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


def read_meta(data_dir: Path) -> _Meta:
    """What a data directory says of itself; raises BrokerError when it is none, or of another format."""
    path = data_dir / _META
    try:
        meta = read_checked(path, _Meta)
    except FileNotFoundError:
        raise BrokerError(f"{data_dir} is not the data directory of a broker") from None
    except (OSError, ValueError) as error:
        raise BrokerError(f"{path} is not a broker's: {error}") from error
    if meta.format != _FORMAT:
        raise BrokerError(
            f"{data_dir} was written in format {meta.format}, this broker knows {_FORMAT};"
            " use the version of kmr that wrote it"
        )
    return meta


@contextmanager
def unused(data_dir: Path) -> Iterator[None]:
    """Keep brokers from using a data directory, without writing anything.

    Raises BrokerError when one uses it already.
    """
    try:
        lock = os.open(data_dir / _LOCK, os.O_RDONLY)
    except FileNotFoundError:  # no broker was ever here
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
