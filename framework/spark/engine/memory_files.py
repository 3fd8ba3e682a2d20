"""The files in which a query keeps what its strategy remembers, beside the checkpoint.

A file has what was remembered of one partition at one position. Its name is that position: the next offset,
and the time without records. A task begins with the file of its first position, and ends with one for the
position after its last: a micro-batch that is repeated has the same ones, so it begins with the same memory
and writes the same file again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import fs

from ...errors import SettingsError
from ...service.storage import Storage, open_storage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...record import TopicPartition

DIRECTORY: Final = "kmr-memory"
"""The directory of the files in that of the checkpoint."""

_SUFFIX: Final = ".arrow"
_NAMES: Final = re.compile(rf"(\d+)(?:\+(\d+))?{re.escape(_SUFFIX)}")
_BEGUN: Final = "begun"
_NAME, _RULE = b"kmr.name", b"kmr.rule"
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")


class Position(NamedTuple):
    """Where the memory of a partition is.

    Attributes:
        offset: of the next record.
        idle: microseconds without one.
    """

    offset: int
    idle: int = 0

    def __str__(self) -> str:
        return f"{self.offset:019d}" + (f"+{self.idle}" if self.idle else "")


class MemoryFiles:
    """The memory files of one query.

    Args:
        checkpoint: the URI of the checkpoint.
        rule: what the strategy remembers, in words: files of another rule are refused. None: of none.

    Raises:
        StrategyError: no file system can be opened.
    """

    def __init__(self, checkpoint: str, rule: str | None = None) -> None:
        self._storage: Storage = open_storage(f"{checkpoint.rstrip('/')}/{DIRECTORY}")
        self._rule = rule

    def begin(self) -> None:
        """Make the directory. Raises SettingsError if it cannot be written to."""
        storage = self._storage
        try:
            storage.put(storage.root, _BEGUN, lambda _: None)
        except OSError as error:
            raise SettingsError(
                f"the memory of the strategy cannot be written to {storage}: {error}"
            ) from error

    def read(self, partition: TopicPartition, position: Position) -> dict[str, pa.Table]:
        """Return the tables that `write` wrote for a position.

        A partition without files begins here. An empty file notes that: its first task may be repeated.

        Raises:
            SettingsError: the file of this position is missing, is of another rule, or this host does not see
                the directory of the driver.
        """
        path = self._path(partition, position)
        known = self._positions(partition)
        if not known:
            self._require_directory()
            self.write(partition, position, {})
            return {}
        if position not in known:
            offsets = ", ".join(str(each.offset) for each in known)
            raise SettingsError(
                f"{path} is missing, with what was remembered before offset {position.offset}; there are "
                f"files for {offsets}. Restore it, or begin with a new checkpoint"
            )
        tables: dict[str, pa.Table] = {}
        with self._storage.filesystem.open_input_file(path) as file:
            while file.tell() < file.size():
                table: Any = pa.ipc.open_stream(file).read_all()
                about = table.schema.metadata
                self._require_rule(path, about[_RULE].decode())
                tables[about[_NAME].decode()] = table
        return tables

    def _require_directory(self) -> None:
        path = f"{self._storage}/{_BEGUN}"
        if self._storage.filesystem.get_file_info(path).type != fs.FileType.File:
            raise SettingsError(
                f"{path} is missing: this host does not see the directory that the driver made. Put the "
                "checkpoint on a file system that all executors share"
            )

    def _require_rule(self, path: str, rule: str) -> None:
        if self._rule is not None and rule != self._rule:
            raise SettingsError(
                f"{path} has the memory of another strategy ({rule}), not of this one ({self._rule}): the "
                "records that it needs were read already. Begin with a new checkpoint"
            )

    def write(
        self, partition: TopicPartition, position: Position, tables: Mapping[str, pa.Table]
    ) -> None:
        """Write the memory that the task of a position begins with."""

        def write(stream: pa.NativeFile) -> None:
            for name, table in tables.items():
                about = {_NAME: name.encode(), _RULE: (self._rule or "").encode()}
                named = table.replace_schema_metadata({**(table.schema.metadata or {}), **about})
                with pa.ipc.new_stream(stream, named.schema, options=_OPTIONS) as writer:
                    writer.write_table(named)

        directory, _, name = self._path(partition, position).rpartition("/")
        self._storage.put(directory, name, write)

    def remove_before(self, partition: TopicPartition, position: Position) -> None:
        """Remove the files of lower positions: a micro-batch that begins at this one needs them no more."""
        for each in self._positions(partition):
            if each < position:
                self._storage.remove(self._path(partition, each))

    def _positions(self, partition: TopicPartition) -> list[Position]:
        directory = self._path(partition, Position(0)).rpartition("/")[0]
        found = self._storage.filesystem.get_file_info(
            fs.FileSelector(directory, allow_not_found=True)
        )
        names = (_NAMES.fullmatch(info.base_name) for info in found)
        return sorted(Position(int(name[1]), int(name[2] or 0)) for name in names if name)

    def _path(self, partition: TopicPartition, position: Position) -> str:
        name = f"{position}{_SUFFIX}"
        return f"{self._storage.root}/{partition.topic}/{partition.partition}/{name}"
