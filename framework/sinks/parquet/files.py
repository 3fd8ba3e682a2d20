"""Parquet files that appear as a whole, under names made of their offsets.

The same offsets have the same name, so a file that is written again replaces the first one. File systems are
those of pyarrow, which every installation has: local, S3, GCS, Azure, HDFS; and through its adapter those of
fsspec.
"""

from __future__ import annotations

import errno
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from ...columns.kinds import is_text, plain, whole
from ...columns.texts import excerpt, python_values
from ...errors import StrategyError
from ...service.storage import HIDDEN, Storage, open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

PartitionValues = tuple[Any, ...]

Compression = Literal["zstd", "snappy", "gzip", "brotli", "lz4", "none"]

# The limits of a flush, so that files are large: many small ones are slow to read.
DEFAULT_MAX_ROWS = 500_000
DEFAULT_MAX_BYTES = 128 * 1024 * 1024
DEFAULT_MAX_AGE = 60.0

SUFFIX = ".parquet"
_AT_ONCE = 8  # files of one range
# Errors about the path of a file: it is too long, another file is there, or another user's directory.
_OF_PATH = frozenset(
    {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EEXIST, errno.ENOTDIR, errno.EISDIR}
    | {errno.EILSEQ, errno.EINVAL}
)
_LONGEST_NAME = 255  # bytes, of file systems
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The value for null in the names of partition directories, as in Hive and Spark."""

_PARTITIONED_BY = b"kmr.partition_by"
"""The key in a footer: a JSON object with the types of the columns of `partition_by`."""

# Spark escapes these in the names of partition directories (ExternalCatalogUtils).
_ESCAPED = re.compile(r"[\x00-\x1f\"#%'*/:=?\\{\[\]^\x7f]")
_PARTITION_TYPES = (
    pa.types.is_null,
    is_text,
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_date,
)


def partition_directory(column: str, value: Any) -> str:
    """Return the directory name for a value of a partition column: `carrier=AA`."""
    return f"{_escape(column)}={_escape(_text(value))}"


def _text(value: Any) -> str:
    if value is None:
        return NULL_PARTITION
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _value_type(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def unnamed_partitions(table: pa.Table, partition_by: Sequence[str]) -> dict[int, str]:
    """Return the rows whose partition has no directory of its own, with the reasons.

    Its name would be too long, or is that of null: so readers take an empty text.
    """
    found: dict[int, str] = {}
    for column in partition_by:
        if column not in table.column_names:
            continue
        texts = plain(whole(table.column(column)))
        if not is_text(texts.type):
            continue
        values = texts.dictionary_encode()
        reasons = [_why_unnamed(column, value) for value in python_values(values.dictionary)]
        if any(reasons):
            of_rows = pa.array(reasons, pa.string()).take(values.indices).to_pylist()
            found.update((row, reason) for row, reason in enumerate(of_rows) if reason is not None)
    return found


def _why_unnamed(column: str, value: str | None) -> str | None:
    if value in ("", NULL_PARTITION):
        return (
            f"column {column}: partition_by makes a directory of it, and {value!r} is read as null"
        )
    if len(partition_directory(column, value).encode()) > _LONGEST_NAME:
        return (
            f"column {column}: {excerpt(value)} is too long for the name of a directory "
            f"({_LONGEST_NAME} bytes), and partition_by makes one of it"
        )
    return None


@dataclass(frozen=True, slots=True)
class Directory(Storage):
    """A directory of Parquet files, with a subdirectory for each value of `partition_by`.

    Attributes:
        partition_by: the columns whose values are in directory names; the files do not have them.
        compression: the compression of new files.
    """

    partition_by: tuple[str, ...] = ()
    compression: Compression = "zstd"

    def write(
        self,
        name: str,
        table: pa.Table,
        metadata: Mapping[bytes, bytes] | None = None,
        on_unwritable: Callable[[NDArray[np.int64], OSError], None] | None = None,
    ) -> list[PartitionValues]:
        """Write rows to the file `name`, and replace an older one; return the partitions that have it.

        A file appears as a whole, and survives a power failure (on a local disk) once this returns. With
        `partition_by`, each partition has a file of that name; they appear one after the other. On an
        object store a file is one put; elsewhere it is written under a hidden name, and renamed.

        Args:
            metadata: for the footer of the first file.
            on_unwritable: called for the partitions that have no file because of their path, with the numbers
                of their rows; None: such an error is raised.

        Raises:
            StrategyError: a partition column is missing, or its type is not allowed.
            OSError: of the file system.
        """
        parts = {self._directory(value): (value, rows) for value, rows in self._divide(table)}
        first = min(parts, default="")
        partition_types = self._partition_types(table)

        def write(directory: str) -> PartitionValues | None:
            value, numbers = parts[directory]
            rows = self._rows(table, numbers)
            more = {**partition_types, **(metadata if directory == first and metadata else {})}
            rows = rows.replace_schema_metadata({**(rows.schema.metadata or {}), **more})
            write_rows = partial(pq.write_table, rows, compression=self.compression)
            try:
                self.put(directory, f"{name}{SUFFIX}", write_rows)
            except OSError as error:
                if on_unwritable is None or error.errno not in _OF_PATH:
                    raise
                on_unwritable(numbers, error)
                return None
            return value

        # A disk syncs many files at once faster than one after the other.
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            return [value for value in threads.map(write, parts) if value is not None]

    def paths(self, name: str, table: pa.Table) -> list[str]:
        """Return the paths of the files that `write` writes for these rows, in order."""
        return sorted(
            f"{self._directory(value)}/{name}{SUFFIX}" for value, _ in self._divide(table)
        )

    def _directory(self, value: PartitionValues) -> str:
        return "/".join([self.root, *map(partition_directory, self.partition_by, value)])

    def exist(self, paths: Sequence[str]) -> bool:
        """Return whether all of these files exist."""
        try:
            found = self.filesystem.get_file_info(list(paths))
        except OSError as error:
            if error.errno in _OF_PATH:
                return False
            raise
        return all(info.type == fs.FileType.File for info in found)

    def metadata(self, path: str) -> Mapping[bytes, bytes]:
        """Return the metadata in the footer of a file."""
        with self.filesystem.open_input_file(path) as file:
            return pq.read_schema(file).metadata or {}

    def _divide(self, table: pa.Table) -> Iterator[tuple[PartitionValues, NDArray[np.int64]]]:
        """Yield each partition of some rows, and their numbers."""
        if not self.partition_by:
            yield (), np.arange(table.num_rows)
            return
        if (problem := self.partition_problem(table.schema)) is not None:
            raise StrategyError(problem)
        names = [str(at) for at in range(len(self.partition_by))]  # Arrow reads others as paths
        keys = pa.table([plain(whole(table.column(each))) for each in self.partition_by], names)
        numbered = keys.append_column("", pa.array(np.arange(table.num_rows)))
        groups = numbered.group_by(names).aggregate([("", "list")])
        rows = groups.column("_list")
        columns = (python_values(whole(groups.column(name))) for name in names)
        for at, value in enumerate(zip(*columns, strict=True)):
            yield value, rows[at].values.to_numpy()

    def _rows(self, table: pa.Table, numbers: NDArray[np.int64]) -> pa.Table:
        """Return some rows, without the columns whose values are in names of directories."""
        rest = table.drop_columns(list(self.partition_by))
        return rest.take(pa.array(numbers, pa.int64())) if self.partition_by else rest

    def partition_problem(self, rows: pa.Schema, known: Sequence[str] = ()) -> str | None:
        """Return why rows cannot be divided by their partition columns; None if they can.

        Args:
            known: columns whose types are known, to which the rows are cast.
        """
        for column in self.partition_by:
            if column in known:
                continue
            if column not in rows.names:
                return (
                    f"the rows for {self} have no column {column}, which partition_by names; "
                    f"they have {', '.join(rows.names)}"
                )
            kind = _value_type(rows.field(column).type)
            if not any(is_one(kind) for is_one in _PARTITION_TYPES):
                return (
                    f"{self}: cannot partition by column {column}, which is {kind}: partition by text, "
                    "integers, booleans or dates"
                )
        if set(self.partition_by) >= {*rows.names, *known}:
            return f"{self}: the rows have no columns but those of partition_by"
        return None

    def schema(self) -> pa.Schema | None:
        """Return the columns of the newest file, and of its partition; None without files."""
        found = self._newest_file(self.root)
        if found is None:
            return None
        with self.filesystem.open_input_file(found) as file:
            schema = pq.read_schema(file)
        types = msgspec.json.decode((schema.metadata or {}).get(_PARTITIONED_BY, b"{}"))
        for name in self.partition_by:
            if name in types and name not in schema.names:
                schema = schema.append(pa.field(name, pa.type_for_alias(types[name])))
        return schema.remove_metadata()

    def _partition_types(self, table: pa.Table) -> dict[bytes, bytes]:
        """Return the types of the partition columns as metadata: names of directories do not tell them."""
        types = {
            name: str(_value_type(table.schema.field(name).type))
            for name in self.partition_by
            if table.column(name).null_count < len(table)
        }
        return {_PARTITIONED_BY: msgspec.json.encode(types)} if types else {}

    def _newest_file(self, directory: str) -> str | None:
        """Return the newest file of the newest directory that has one: columns are only ever added."""
        selector = fs.FileSelector(directory, allow_not_found=True)
        found = [
            each
            for each in self.filesystem.get_file_info(selector)
            if not each.base_name.startswith((HIDDEN, "."))
        ]
        found.sort(key=lambda each: (each.mtime_ns or 0, each.base_name), reverse=True)
        for each in found:
            if each.type == fs.FileType.File and each.base_name.endswith(SUFFIX):
                return each.path
        directories = (each.path for each in found if each.type == fs.FileType.Directory)
        return next(filter(None, map(self._newest_file, directories)), None)


def open_directory(
    path: str,
    *,
    filesystem: Any = None,
    partition_by: Sequence[str] = (),
    compression: Compression = "zstd",
) -> Directory:
    """Open a directory, which may be missing, as `open_storage` does."""
    opened = open_storage(path, filesystem)
    return Directory(opened.filesystem, opened.root, tuple(partition_by), compression)
