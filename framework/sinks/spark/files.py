"""Parquet files for Spark: written under a hidden name, then renamed to a name made of their offsets.

The same offsets have the same name, so a file that is written again replaces the first one.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from ...errors import StrategyError
from ..planning import plan_inserts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ...record import Rows, TopicPartition
    from ..planning import Insert

__all__ = [
    "HIDDEN",
    "NULL_PARTITION",
    "SUFFIX",
    "Compression",
    "Directory",
    "Part",
    "PartitionValues",
    "Span",
    "open_directory",
    "partition_directory",
    "plan_parts",
    "safe_name",
]

PartitionValues = tuple[Any, ...]

Compression = Literal["zstd", "snappy", "gzip", "brotli", "lz4", "none"]

SUFFIX = ".parquet"
HIDDEN = "_"
"""Spark, and other readers of Hive's layout, ignore names that begin with this."""

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The value for null in the names of partition directories, as in Hive and Spark."""

_SEPARATOR = "~"  # not allowed in topic names, and not special in a URI or to Spark
_LONGEST = 200  # a file name has at most 255 bytes; ours get a prefix and a suffix
_SPAN = re.compile(r"([^~]+)~([^~]+)~(\d+)~(\d+)-(\d+)")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
# Spark escapes these in the names of partition directories (ExternalCatalogUtils).
_ESCAPED = re.compile(r"[\x00-\x1f\"#%'*/:=?\\{\[\]^\x7f]")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_S3 = re.compile(r"s3[an]:")
_PARTITION_TYPES = (
    pa.types.is_string,
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_date,
)


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets `[first, last]`, both inclusive, of one topic partition, written by one consumer group.

    `str` is the name of their file, without its suffix.
    """

    group: str
    topic: str
    partition: int
    first: int
    last: int

    def __str__(self) -> str:
        # 19 digits hold every offset, so names sort by offset.
        parts = (safe_name(self.group), self.topic, str(self.partition))
        return _SEPARATOR.join((*parts, f"{self.first:019d}-{self.last:019d}"))

    @classmethod
    def parse(cls, name: str) -> Span | None:
        """Parse the name of a file, without its suffix; return None for a foreign file."""
        found = _SPAN.fullmatch(name)
        if found is None:
            return None
        group, topic, *numbers = found.groups()
        return cls(group, topic, *map(int, numbers))

    def through(self, other: Span) -> Span:
        """Return the span from the lowest to the highest offset of both."""
        return replace(self, first=min(self.first, other.first), last=max(self.last, other.last))


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of a flush from one topic partition; or all rows, if they belong to no single one.

    Attributes:
        name: made of the offsets only: the same in every process.
        span: the offsets; None for rows of several partitions.
        insert: the rows.
        generation: of the partition's offsets; 0 without a span.
    """

    name: str
    span: Span | None
    insert: Insert
    generation: int = 0


def plan_parts(
    added: Sequence[Rows], group: str, generations: Mapping[TopicPartition, int]
) -> list[Part]:
    """Divide a flush into parts, one for each topic partition."""
    return [_part(insert, group, generations) for insert in plan_inserts(added, group, generations)]


def _part(insert: Insert, group: str, generations: Mapping[TopicPartition, int]) -> Part:
    ranges = [r for rows in insert.parts for r in rows.ranges]
    digest = sha256(insert.token.encode()).hexdigest()[:32]
    name = f"{safe_name(group[:64])}{_SEPARATOR}{digest}"
    if len({r.topic_partition for r in ranges}) != 1:
        return Part(name, None, insert)
    topic, partition = ranges[0].topic_partition
    first, last = min(r.first for r in ranges), max(r.last for r in ranges)
    span = Span(group, topic, partition, first, last)
    generation = generations.get(ranges[0].topic_partition, 0)
    return Part(str(span) if len(str(span)) <= _LONGEST else name, span, insert, generation)


def safe_name(text: str) -> str:
    """Return a text as a safe and unique part of a file name."""
    if text and not _UNSAFE.search(text):
        return text
    return f"{_UNSAFE.sub('_', text)}_{sha256(text.encode()).hexdigest()[:8]}"


def partition_directory(column: str, value: Any) -> str:
    """Return the directory name for a value of a partition column: `carrier=AA`."""
    return f"{_escape(column)}={_escape(_text(value))}"


def _text(value: Any) -> str:
    if value is None:
        return NULL_PARTITION
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory of Parquet files, with a subdirectory for each value of `partition_by`.

    Attributes:
        filesystem, root: its place.
        partition_by: the columns whose values are in directory names; the files do not have them.
        compression: the compression of new files.
    """

    filesystem: fs.FileSystem
    root: str
    partition_by: tuple[str, ...] = ()
    compression: Compression = "zstd"

    def __str__(self) -> str:
        return self.root

    def write(self, name: str, table: pa.Table) -> list[PartitionValues]:
        """Write rows to the file `name`, and replace an older one; return the partitions that have it.

        A file appears as a whole, and survives a power failure (on a local disk) once this returns. With
        `partition_by`, each partition has a file of that name; they appear one after the other.

        Raises:
            StrategyError: a partition column is missing, or its type is not allowed.
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
        # A unique name: a worker that lost its partition may still write the same rows.
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

    def schema(self) -> pa.Schema | None:
        """Return the columns of any existing file; None without files."""
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
    """Replace empty text by null: to Spark, they are the same partition."""
    if not pa.types.is_string(column.type):
        return column
    return pc.if_else(pc.equal(column, pa.scalar("")), pa.scalar(None, pa.string()), column)


def open_directory(
    path: str, *, partition_by: Sequence[str] = (), compression: Compression = "zstd"
) -> Directory:
    """Open a directory by its path or URI (`file:`, `s3:`, `s3a:`, `gs:`, `hdfs:`, `abfs:`); may be missing.

    Raises:
        StrategyError: pyarrow cannot open its file system.
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
