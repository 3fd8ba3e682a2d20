"""A directory on a file system of pyarrow or of fsspec: files that appear as a whole."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from .._extras import install_command
from ..errors import StrategyError

if TYPE_CHECKING:
    from collections.abc import Callable

HIDDEN: Final = "_"
"""Spark, and other readers of Hive's layout, ignore names that begin with this."""

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_S3: Final = re.compile(r"s3[an]:")
# pyarrow's names of file systems, and protocols of fsspec.
_OBJECT_STORES: Final = frozenset(
    ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "memory")
)


@dataclass(frozen=True, slots=True)
class Storage:
    """A directory, which may be missing.

    Attributes:
        filesystem, root: its place.
    """

    filesystem: fs.FileSystem
    root: str

    def __str__(self) -> str:
        return self.root

    @property
    def is_object_store(self) -> bool:
        """Whether a file appears as a whole when it is complete, so that renaming it would only copy it."""
        handler = _fsspec_of(self.filesystem)
        if handler is None:
            return self.filesystem.type_name in _OBJECT_STORES
        protocols = handler.protocol
        names = (protocols,) if isinstance(protocols, str) else protocols
        return not _OBJECT_STORES.isdisjoint(names)

    def put(self, directory: str, name: str, write: Callable[[pa.NativeFile], None]) -> None:
        """Make the file `name` with what `write` writes, as a whole or not at all; replace an older one."""
        if self.is_object_store:
            self._put_object(f"{directory}/{name}", write)
            return
        self.filesystem.create_dir(directory, recursive=True)
        # A unique name: a worker that lost its partition may still write the same rows.
        hidden = f"{directory}/{HIDDEN}{name}.{uuid4().hex[:8]}"
        try:
            with self.filesystem.open_output_stream(hidden) as stream:
                write(stream)
            self.sync(hidden)
            self.rename(hidden, f"{directory}/{name}")
            self.sync(directory)
        except BaseException:
            self.remove(hidden)
            raise

    def _put_object(self, path: str, write: Callable[[pa.NativeFile], None]) -> None:
        sink = pa.BufferOutputStream()
        write(sink)
        handler = _fsspec_of(self.filesystem)
        if handler is not None:
            handler.pipe_file(path, sink.getvalue().to_pybytes())
            return
        # Not as a context: that would close the stream after an error too, and so complete the object.
        stream = self.filesystem.open_output_stream(path)
        stream.write(sink.getvalue())
        stream.close()

    def rename(self, old: str, new: str) -> None:
        """Rename a file, and replace one that has the new name."""
        try:
            self.filesystem.move(old, new)
        except OSError:  # HDFS does not replace a file
            if self.filesystem.get_file_info(new).type != fs.FileType.File:
                raise
            self.filesystem.delete_file(new)
            self.filesystem.move(old, new)

    def remove(self, path: str) -> None:
        """Delete a file, if it exists."""
        if self.filesystem.get_file_info(path).type == fs.FileType.File:
            self.filesystem.delete_file(path)

    def sync(self, path: str) -> None:
        """Sync a file, or the entries of a directory, to the local disk; object stores need no sync."""
        if not isinstance(self.filesystem, fs.LocalFileSystem):
            return
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def check(self) -> None:
        """Raise OSError if it shows before the first file that the directory cannot be written to."""
        if self.is_object_store:
            self.filesystem.get_file_info(self.root)
            return
        self.filesystem.create_dir(self.root, recursive=True)
        if isinstance(self.filesystem, fs.LocalFileSystem) and not os.access(self.root, os.W_OK):
            raise PermissionError("permission denied")


def open_storage(path: str, filesystem: Any = None) -> Storage:
    """Open a directory by its path or URI (`file:`, `s3:`, `s3a:`, `gs:`, `hdfs:`, `abfs:`).

    A URI that pyarrow does not know is opened by fsspec, if that is installed.

    Args:
        filesystem: of pyarrow, or of fsspec; then `path` is a path in it.

    Raises:
        StrategyError: no file system can be opened.
    """
    try:
        opened, root = _open(path, filesystem)
    # ArrowInvalid is a ValueError; a client that fsspec needs is not installed: ImportError
    except (OSError, ValueError, NotImplementedError, ImportError) as error:
        raise StrategyError(
            f"{without_secrets(path)} cannot be opened from here: {error}"
        ) from error
    return Storage(opened, root.rstrip("/") or "/")


def _fsspec_of(filesystem: fs.FileSystem) -> Any:
    """Return the file system of fsspec behind one of pyarrow; None if there is none."""
    handler = getattr(filesystem, "handler", None)
    return handler.fs if isinstance(handler, fs.FSSpecHandler) else None


def _open(path: str, filesystem: Any) -> tuple[fs.FileSystem, str]:
    if isinstance(filesystem, fs.FileSystem):
        return filesystem, path
    if filesystem is not None:
        return _wrapped(filesystem), path
    if not _URI.match(path):
        return fs.LocalFileSystem(), str(Path(path).expanduser().absolute())
    try:
        return fs.FileSystem.from_uri(_S3.sub("s3:", path))
    except pa.ArrowInvalid as error:
        if importlib.util.find_spec("fsspec") is None:
            raise ValueError(f"{error}; fsspec may know it: {install_command('fsspec')}") from error
    import fsspec

    opened, root = fsspec.core.url_to_fs(path)
    return _wrapped(opened), root


def _wrapped(filesystem: Any) -> fs.FileSystem:
    handler: Any = fs.FSSpecHandler  # the stubs call it abstract
    return fs.PyFileSystem(handler(filesystem))


def without_secrets(url: str) -> str:
    """Return a URL without its user, password and query, for messages."""
    return re.sub(r"://[^@/]*@", "://", url).partition("?")[0]
