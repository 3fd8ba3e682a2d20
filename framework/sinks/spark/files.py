"""Parquet files that Spark reads: written under a hidden name, then renamed; the same rows, the same name."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from framework.errors import StrategyError
from framework.sinks.spark.names import SUFFIX, partition_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["HIDDEN", "Compression", "Directory", "PartitionValues", "open_directory"]

HIDDEN = "_"
"""Spark, and everything that reads Hive's layout, takes no notice of names that begin like this."""

PartitionValues = tuple[Any, ...]

Compression = Literal["zstd", "snappy", "gzip", "brotli", "lz4", "none"]

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_S3 = re.compile(r"s3[an]:")
_PARTITION_TYPES = (
    pa.types.is_string,
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_date,
)


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory of Parquet files, with directories below it for the values of `partition_by`.

    Attributes:
        filesystem, root: where it is.
        partition_by: the columns whose values are the names of directories; files do not hold them.
        compression: of the columns in files.
    """

    filesystem: fs.FileSystem
    root: str
    partition_by: tuple[str, ...] = ()
    compression: Compression = "zstd"

    def __str__(self) -> str:
        return self.root

    def write(self, name: str, table: pa.Table) -> list[PartitionValues]:
        """Write rows as the file `name`, in place of one that was there; returns the partitions it is in.

        Nobody sees a part of a file, and once this returns it survives a power failure (of a local disk).
        With `partition_by`, there is a file of that name in every partition, one visible after the other.

        Raises:
            StrategyError: a partition column is missing, or of a type that makes no good name.
            OSError: of the file system.
        """
        values = []
        for value, rows in self._divide(table):
            names = map(partition_directory, self.partition_by, value)
            directory = "/".join([self.root, *names])
            self.filesystem.create_dir(directory, recursive=True)
            self._put(directory, f"{name}{SUFFIX}", rows)
            values.append(value)
        return values

    def _divide(self, table: pa.Table) -> Iterator[tuple[PartitionValues, pa.Table]]:
        if not self.partition_by:
            yield (), table
            return
        for column in self.partition_by:
            self._check_partition_column(table, column)
        keys = pa.table(
            {column: _without_empty(table.column(column)) for column in self.partition_by}
        )
        numbered = keys.append_column("", pa.array(np.arange(table.num_rows)))
        groups = numbered.group_by(list(self.partition_by)).aggregate([("", "list")])
        rest = table.drop_columns(list(self.partition_by))
        rows = groups.column("_list")
        for at, value in enumerate(
            zip(*(groups.column(column).to_pylist() for column in self.partition_by), strict=True)
        ):
            yield value, rest.take(rows[at].values)

    def _check_partition_column(self, table: pa.Table, column: str) -> None:
        if column not in table.column_names:
            raise StrategyError(
                f"the rows for {self} have no column {column}, which partition_by names; "
                f"they have {', '.join(table.column_names)}"
            )
        kind = table.schema.field(column).type
        if not any(is_one(kind) for is_one in _PARTITION_TYPES):
            raise StrategyError(
                f"{self}: cannot partition by column {column}, which is {kind}: partition by text, "
                "integers, booleans or dates"
            )
        if table.num_columns == len(self.partition_by):
            raise StrategyError(f"{self}: the rows have no columns but those of partition_by")

    def _put(self, directory: str, name: str, table: pa.Table) -> None:
        # A name that nobody else uses: a worker that lost its partition may be writing the same rows.
        hidden = f"{directory}/{HIDDEN}{name}.{uuid4().hex[:8]}"
        try:
            with self.filesystem.open_output_stream(hidden) as stream:
                pq.write_table(table, stream, compression=self.compression)
            self.sync(hidden)
            self.rename(hidden, f"{directory}/{name}")
            self.sync(directory)
        except BaseException:
            self.remove(hidden)
            raise

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, in place of one that has it."""
        try:
            self.filesystem.move(old, new)
        except OSError:  # HDFS renames onto no other file
            if self.filesystem.get_file_info(new).type != fs.FileType.File:
                raise
            self.filesystem.delete_file(new)
            self.filesystem.move(old, new)

    def remove(self, path: str) -> None:
        """Delete a file, if it is there."""
        if self.filesystem.get_file_info(path).type == fs.FileType.File:
            self.filesystem.delete_file(path)

    def sync(self, path: str) -> None:
        """Bring a file, or the names in a directory, to the disk; object stores have done so already."""
        if not isinstance(self.filesystem, fs.LocalFileSystem):
            return
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def schema(self) -> pa.Schema | None:
        """The columns of one of the files that are there; None without any."""
        found = self._any_file(self.root)
        if found is None:
            return None
        with self.filesystem.open_input_file(found) as file:
            return pq.read_schema(file).remove_metadata()

    def _any_file(self, directory: str) -> str | None:
        selector = fs.FileSelector(directory, allow_not_found=True)
        for info in self.filesystem.get_file_info(selector):
            if info.base_name.startswith((HIDDEN, ".")):
                continue
            if info.type == fs.FileType.Directory:
                if found := self._any_file(info.path):
                    return found
            elif info.base_name.endswith(SUFFIX):
                return info.path
        return None


def _without_empty(column: Any) -> Any:
    """To Spark, the empty text and null are the same partition."""
    if not pa.types.is_string(column.type):
        return column
    return pc.if_else(pc.equal(column, pa.scalar("")), pa.scalar(None, pa.string()), column)


def open_directory(
    path: str, *, partition_by: Sequence[str] = (), compression: Compression = "zstd"
) -> Directory:
    """A directory by its path or URI (`file:`, `s3:` or `s3a:`, `gs:`, `hdfs:`, `abfs:`); need not exist yet.

    Raises:
        StrategyError: there is no such file system here, or it cannot be opened.
    """
    filesystem: fs.FileSystem
    try:
        if _URI.match(path):
            filesystem, root = fs.FileSystem.from_uri(_S3.sub("s3:", path))
        else:
            filesystem, root = fs.LocalFileSystem(), str(Path(path).expanduser().absolute())
    except (OSError, ValueError, NotImplementedError) as error:  # ArrowInvalid is a ValueError
        raise StrategyError(f"{path} cannot be written from here: {error}") from error
    return Directory(filesystem, root.rstrip("/") or "/", tuple(partition_by), compression)
