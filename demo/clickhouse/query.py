"""A query as it came over HTTP, and its answer."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from demo.clickhouse.statement import Statement

__all__ = ["Answer", "ExternalTable", "Query", "Spool"]


class Spool:
    """Bytes that the engine reads as a file: in memory, without a name, gone when closed."""

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self._file: Any = os.fdopen(os.memfd_create("clickhouse-insert"), "wb", buffering=0)
            self.path = f"/proc/self/fd/{self._file.fileno()}"
        else:
            self._file = tempfile.NamedTemporaryFile(buffering=0)  # noqa: SIM115
            self.path = self._file.name

    def write(self, data: bytes | memoryview) -> None:
        """Append; a write to memory is never partial."""
        self._file.write(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class ExternalTable:
    """Data that a query brings along as a temporary table: `structure` is `name Type, ...`."""

    name: str
    structure: str
    format: str
    data: Spool


@dataclass(frozen=True, slots=True)
class Query:
    """One statement with everything that came with it.

    Attributes:
        text: the SQL; of an INSERT with data only its head.
        data: the rows of an INSERT, compressed as `encoding` says.
        tag: names the query for `Engine.kill`.
        session: keeps temporary tables and settings between queries; idle for longer than
            `session_timeout` seconds it ends.
    """

    text: bytes
    statement: Statement
    data: Spool | None = None
    encoding: str | None = None
    database: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    default_format: str = "TabSeparated"
    external: Sequence[ExternalTable] = ()
    tag: str = ""
    session: str | None = None
    session_timeout: float = 60.0
    session_must_exist: bool = False

    def sql(self) -> bytes:
        """What the engine is given."""
        statement = self.statement
        if self.data is None:
            return self.text
        # a compressed INSERT is decompressed by the engine while it reads
        return b"%s FROM INFILE '%s' COMPRESSION '%s' %s FORMAT %s" % (
            statement.target,
            self.data.path.encode(),
            (self.encoding or "none").encode(),
            statement.settings,
            (statement.format or "").encode(),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What a statement returned; `format` is None if it has no result set."""

    body: bytes
    format: str | None
    summary: dict[str, str]
