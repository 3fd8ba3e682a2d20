"""Compaction: merge the small files of a `ParquetWriter` into large ones, by topic partition.

The name of a file has its offsets (`group~topic~partition~first-last.parquet`). Neighbours of one topic
partition in one directory become one file, named from their first to their last offset. The newest range
of each topic partition stays as it is, and so do files younger than `min_age`: a worker that restarts
after a crash may write them again under the same names. (After a reset of committed offsets to before
that, records are delivered again, into new files beside the compacted one.)

A crash loses nothing: a journal names the files to replace before any is removed, and the next run
finishes it. From the appearance of the new file to the removal of the last old one (after a crash: until
the next run), readers see rows twice, and a query that is reading the old files may fail.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from ...errors import SinkError
from ...record import with_schema
from ...service.storage import HIDDEN
from ..planning import Span
from .files import SUFFIX, open_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .files import Compression, Directory

TARGET_BYTES = 128 * 1024 * 1024
"""The size of a large enough file: a block of HDFS, and the input of a task of Spark."""

_MIN_AGE = 3600.0
_JOURNAL = f"{HIDDEN}kmr-compact-"
_ABANDONED = timedelta(days=1)
_ROW_GROUP_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction.

    Attributes:
        files_before, files_after: the number of files.
        bytes_rewritten: the size of the merged files.
        finished: replacements of an interrupted run that this one finished.
        abandoned: old hidden files of a crash that this run removed.
    """

    files_before: int
    files_after: int
    bytes_rewritten: int
    finished: int = 0
    abandoned: int = 0


class _Replacement(msgspec.Struct, frozen=True):
    """A replacement: rename `hidden` to `final`, then remove `old`; paths relative to the root."""

    hidden: str
    final: str
    old: list[str]


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    span: Span
    size: int
    modified: datetime

    @property
    def directory(self) -> str:
        return self.path.rpartition("/")[0]


def compact_path(
    path: str,
    *,
    target_bytes: int = TARGET_BYTES,
    min_age: float = _MIN_AGE,
    compression: Compression = "zstd",
    dry_run: bool = False,
) -> Compacted:
    """Merge the small files of a directory, without Spark. Only one run at a time for a directory.

    Args:
        path: a directory, or its URI, with files of `ParquetWriter`.
        target_bytes: merge smaller files, up to this size.
        min_age: leave files alone for this many seconds after they were written.
        dry_run: only return what would be done.

    Raises:
        SinkError: there is no such directory, or it belongs to a table format with a log of its own.
        StrategyError: pyarrow cannot open the file system.
        OSError: the file system failed; nothing is lost, and the next run continues.
    """
    directory = open_directory(path, compression=compression)
    if directory.filesystem.get_file_info(directory.root).type != fs.FileType.Directory:
        raise SinkError(f"there is no directory {path}")
    for log, format_ in (("_delta_log", "Delta"), ("metadata", "Iceberg")):
        found = directory.filesystem.get_file_info(f"{directory.root}/{log}")
        if found.type == fs.FileType.Directory:
            raise SinkError(
                f"{path} is a table of {format_}, which has its own log of files: use its own "
                "statement, OPTIMIZE or CALL system.rewrite_data_files"
            )
    infos = directory.filesystem.get_file_info(fs.FileSelector(directory.root, recursive=True))
    now = datetime.now(UTC)
    journals = [info.path for info in infos if info.base_name.startswith(_JOURNAL)]
    finished = 0
    if journals and not dry_run:
        finished = sum(_finish(directory, journal) for journal in journals)
        infos = directory.filesystem.get_file_info(fs.FileSelector(directory.root, recursive=True))
    files = list(_ours(infos))
    before = now - timedelta(seconds=min_age)
    taken = {file.path for file in files}
    groups = [
        group
        for group in _groups(files, target_bytes, before)
        # A repeated delivery may have made another file with that name.
        if _path(group) not in taken or _path(group) in {file.path for file in group}
    ]
    left = [
        info.path
        for info in infos
        if info.base_name.startswith(HIDDEN) and _is_abandoned(info, now)
    ]
    if not dry_run:
        for group in groups:
            _replace(directory, group)
        for hidden in left:
            directory.remove(hidden)
    return Compacted(
        files_before=len(files),
        files_after=len(files) - sum(len(group) - 1 for group in groups),
        bytes_rewritten=sum(file.size for group in groups for file in group),
        finished=finished,
        abandoned=len(left),
    )


def _ours(infos: Iterable[fs.FileInfo]) -> Iterator[_File]:
    for info in infos:
        name = info.base_name
        if info.type != fs.FileType.File or not name.endswith(SUFFIX) or name.startswith(HIDDEN):
            continue
        span = Span.parse(name.removesuffix(SUFFIX))
        if span is not None:
            yield _File(info.path, span, info.size, info.mtime or datetime.now(UTC))


def _groups(files: Sequence[_File], target: int, before: datetime) -> Iterator[list[_File]]:
    """Yield groups of files to merge: neighbours that are small and are not written again."""
    newest: dict[tuple[str, str, int, int], int] = {}
    for file in files:
        key = _series(file.span)
        newest[key] = max(newest.get(key, -1), file.span.last)
    series: dict[tuple[str, tuple[str, str, int, int]], list[_File]] = defaultdict(list)
    for file in files:
        key = _series(file.span)
        settled = file.span.last < newest[key]
        if settled and file.modified < before and file.size < target:
            series[file.directory, key].append(file)
    for alike in series.values():
        group: list[_File] = []
        size = 0
        for file in sorted(alike, key=lambda file: (file.span.first, file.span.last)):
            if group and size + file.size > target:
                if len(group) > 1:
                    yield group
                group, size = [], 0
            group.append(file)
            size += file.size
        if len(group) > 1:
            yield group


def _series(span: Span) -> tuple[str, str, int, int]:
    return span.group, span.topic, span.partition, span.generation


def _path(group: Sequence[_File]) -> str:
    """Return the path of the merged file, named from the lowest to the highest offset."""
    span = reduce(Span.through, (file.span for file in group))
    return f"{group[0].directory}/{span}{SUFFIX}"


def _replace(directory: Directory, group: Sequence[_File]) -> None:
    """Merge files into one, and replace them by it."""
    final = _path(group)
    parent, _, name = final.rpartition("/")
    token = uuid4().hex[:8]
    hidden = f"{parent}/{HIDDEN}{name}.{token}"
    try:
        _merge_files(directory, [file.path for file in group], hidden)
        directory.sync(hidden)
    except BaseException:
        directory.remove(hidden)
        raise
    start = len(directory.root) + 1
    old = [file.path[start:] for file in group]
    entry = _Replacement(hidden[start:], final[start:], old)
    journal = f"{directory.root}/{_JOURNAL}{token}.json"
    with directory.filesystem.open_output_stream(journal) as stream:
        stream.write(msgspec.json.encode(entry))
    directory.sync(journal)
    directory.sync(directory.root)
    _finish(directory, journal)


def _merge_files(directory: Directory, paths: Sequence[str], into: str) -> None:
    """Write the rows of files to one, in order, in large row groups; hold one of those in memory.

    Raises:
        SinkError: a column has incompatible types in the files.
        OSError: the file system failed.
    """
    schemas = []
    for path in paths:
        with directory.filesystem.open_input_file(path) as file:
            schemas.append(pq.read_schema(file).remove_metadata())
    try:
        schema = pa.unify_schemas(schemas, promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise SinkError(
            f"{paths[0].rpartition('/')[0]}: a column has incompatible types in its files ({error})"
        ) from error
    with (
        directory.filesystem.open_output_stream(into) as stream,
        pq.ParquetWriter(stream, schema, compression=directory.compression) as writer,
    ):
        waiting: list[pa.Table] = []
        for path in paths:
            with directory.filesystem.open_input_file(path) as file:
                for batch in pq.ParquetFile(file).iter_batches():
                    waiting.append(pa.Table.from_batches([with_schema(batch, schema)]))
                    if sum(table.nbytes for table in waiting) >= _ROW_GROUP_BYTES:
                        writer.write_table(pa.concat_tables(waiting))
                        waiting = []
        if waiting:
            writer.write_table(pa.concat_tables(waiting))


def _finish(directory: Directory, journal: str) -> bool:
    """Finish the replacement of a journal; return False if nothing had been replaced."""
    with directory.filesystem.open_input_stream(journal) as stream:
        content = stream.read()
    try:
        entry = msgspec.json.decode(content, type=_Replacement)
    except msgspec.DecodeError:
        # A crash while it was written: nothing has been replaced yet.
        directory.remove(journal)
        return False
    root = directory.root
    hidden, final = f"{root}/{entry.hidden}", f"{root}/{entry.final}"
    if directory.filesystem.get_file_info(hidden).type == fs.FileType.File:
        directory.rename(hidden, final)
        directory.sync(final.rpartition("/")[0])
    for old in entry.old:
        if old != entry.final:
            directory.remove(f"{root}/{old}")
    directory.sync(final.rpartition("/")[0])
    directory.remove(journal)
    return True


def _is_abandoned(info: fs.FileInfo, now: datetime) -> bool:
    """Return whether a hidden file is too old to be still written."""
    name = info.base_name[len(HIDDEN) :].rpartition(SUFFIX)[0]
    old = info.mtime is not None and info.mtime < now - _ABANDONED
    return info.type == fs.FileType.File and old and "~" in name
