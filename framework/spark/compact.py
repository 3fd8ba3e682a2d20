"""Small files into large ones: what `SparkWriter` wrote, flush after flush, rewritten by topic partition.

A file's name says which offsets it holds (`group~topic~partition~first-last.parquet`); neighbours of one
topic partition in one directory become one file, named from the first to the last offset of them all. The
newest range of each topic partition is left alone, and so is everything younger than `min_age`: a worker
that comes back after a crash may write them again, under the names that they have. (Offsets that are reset
to before that are delivered once more, beside the file that has them.)

Nothing is lost by a crash: what is to be replaced is written down first, and the next run ends what the
last one began. For the moment between the new file's appearance and the last old one's removal (until
that next run, if it was a crash) readers see rows twice, and a query that is reading the old files may fail.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from pyarrow import fs

from framework.errors import SinkError, StrategyError
from framework.sinks.spark.files import HIDDEN, open_directory
from framework.sinks.spark.names import SUFFIX, Span
from framework.sinks.spark.tables import read_table
from framework.spark.merge import merge_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from framework.sinks.spark.files import Compression, Directory

__all__ = ["TARGET_BYTES", "Compacted", "compact_path", "compact_table"]

TARGET_BYTES = 128 * 1024 * 1024
"""Bytes of a file that is large enough: the size of a block of HDFS, and of a task of Spark."""

_MIN_AGE = 3600.0
_JOURNAL = f"{HIDDEN}kmr-compact-"
_ABANDONED = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Compacted:
    """What was done: files before and after, of those that are ours, and bytes that were rewritten.

    `finished` are the replacements of an earlier run that had not come to its end; `abandoned` are hidden
    files that a crash had left behind.
    """

    files_before: int
    files_after: int
    bytes_rewritten: int
    finished: int = 0
    abandoned: int = 0


class _Journal(msgspec.Struct, frozen=True):
    """A replacement on its way: `hidden` becomes `final`, and `old` are removed; paths below the root."""

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
    """Put small files of a directory together, without Spark. One run at a time for a directory.

    Args:
        path: a directory, or its URI, that `SparkWriter` writes Parquet to.
        target_bytes: files of that size and more are left as they are; others grow up to it.
        min_age: files that were written in the last so many seconds are left as they are.
        dry_run: only say what would be done.

    Raises:
        SinkError: there is no such directory, or it belongs to a table format with a log of its own.
        StrategyError: the path cannot be reached from here.
        OSError: of the file system; nothing is lost, the next run goes on.
    """
    directory = open_directory(path, compression=compression)
    if directory.filesystem.get_file_info(directory.root).type != fs.FileType.Directory:
        raise SinkError(f"there is no directory {path}")
    for log, format_ in (("_delta_log", "Delta"), ("metadata", "Iceberg")):
        found = directory.filesystem.get_file_info(f"{directory.root}/{log}")
        if found.type == fs.FileType.Directory:
            raise SinkError(
                f"{path} is a table of {format_}, which has its own log of files: name the table, "
                "so that Spark compacts it"
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
        # At least once may have made a file that has the name already, and is none of these.
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


def compact_table(
    session: SparkSession,
    table: str,
    *,
    target_bytes: int = TARGET_BYTES,
    min_age: float = _MIN_AGE,
    dry_run: bool = False,
) -> Compacted | None:
    """As `compact_path`, for a table; one of Delta or Iceberg is told to do it, which returns None.

    Raises:
        StrategyError: there is no such table, or its format cannot be compacted.
    """
    found = read_table(session, table)
    if found.provider == "delta":
        if not dry_run:
            session.sql(f"OPTIMIZE {found.identifier}")
        return None
    if found.provider == "iceberg":
        catalog = table.split(".")[0]
        if not dry_run:
            session.sql(f"CALL `{catalog}`.system.rewrite_data_files(table => '{table}')")
        return None
    if found.provider != "parquet" or found.location is None:
        raise StrategyError(f"{table} is a {found.provider} table, which cannot be compacted")
    done = compact_path(found.location, target_bytes=target_bytes, min_age=min_age, dry_run=dry_run)
    session.sql(f"REFRESH TABLE {found.identifier}")
    return done


def _ours(infos: Iterable[fs.FileInfo]) -> Iterator[_File]:
    for info in infos:
        name = info.base_name
        if info.type != fs.FileType.File or not name.endswith(SUFFIX) or name.startswith(HIDDEN):
            continue
        span = Span.parse(name.removesuffix(SUFFIX))
        if span is not None:
            yield _File(info.path, span, info.size, info.mtime or datetime.now(UTC))


def _groups(files: Sequence[_File], target: int, before: datetime) -> Iterator[list[_File]]:
    """Files to put together: neighbours, none of them large, none that may be written again."""
    newest: dict[tuple[str, str, int], int] = {}
    for file in files:
        key = (file.span.group, file.span.topic, file.span.partition)
        newest[key] = max(newest.get(key, -1), file.span.last)
    series: dict[tuple[str, str, str, int], list[_File]] = defaultdict(list)
    for file in files:
        span = file.span
        settled = span.last < newest[span.group, span.topic, span.partition]
        if settled and file.modified < before and file.size < target:
            series[file.directory, span.group, span.topic, span.partition].append(file)
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


def _path(group: Sequence[_File]) -> str:
    """The file that takes their place, from the lowest to the highest offset of them all."""
    span = reduce(Span.through, (file.span for file in group))
    return f"{group[0].directory}/{span}{SUFFIX}"


def _replace(directory: Directory, group: Sequence[_File]) -> None:
    """Write the rows of several files into one, and put it in their place."""
    final = _path(group)
    parent, _, name = final.rpartition("/")
    token = uuid4().hex[:8]
    hidden = f"{parent}/{HIDDEN}{name}.{token}"
    try:
        merge_files(directory, [file.path for file in group], hidden)
        directory.sync(hidden)
    except BaseException:
        directory.remove(hidden)
        raise
    start = len(directory.root) + 1
    old = [file.path[start:] for file in group]
    entry = _Journal(hidden[start:], final[start:], old)
    journal = f"{directory.root}/{_JOURNAL}{token}.json"
    with directory.filesystem.open_output_stream(journal) as stream:
        stream.write(msgspec.json.encode(entry))
    directory.sync(journal)
    directory.sync(directory.root)
    _finish(directory, journal)


def _finish(directory: Directory, journal: str) -> bool:
    """Do what a journal says, or the rest of it; returns whether there was something to do."""
    with directory.filesystem.open_input_stream(journal) as stream:
        content = stream.read()
    try:
        entry = msgspec.json.decode(content, type=_Journal)
    except msgspec.DecodeError:
        # Cut off while it was written: nothing had been replaced then.
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
    """Whether a hidden file of ours is so old that nobody can still be writing it."""
    name = info.base_name[len(HIDDEN) :].rpartition(SUFFIX)[0]
    old = info.mtime is not None and info.mtime < now - _ABANDONED
    return info.type == fs.FileType.File and old and "~" in name
