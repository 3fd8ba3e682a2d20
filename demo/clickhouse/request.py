"""From an HTTP request to a query: its statement, its parameters, its data.

A ClickHouse statement may stand in the parameter `query`, in the body, or in both, one after the other;
the rows of an INSERT follow it, and the body may be compressed. Rows go to a spool as they arrive.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import BodyPartReader

from demo.clickhouse.errors import ClickHouseError
from demo.clickhouse.http import decompress, settings_of
from demo.clickhouse.query import ExternalTable, Query, Spool
from demo.clickhouse.statement import Statement, parse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack

    from aiohttp import web

__all__ = ["read_query"]

_HEAD_BYTES = 262_144  # ClickHouse's own max_query_size: how much of an INSERT it looks at
_MAX_QUERY_BYTES = 16 * 1024 * 1024
_CHUNK = 1024 * 1024
_ALL = 1 << 62


async def read_query(
    request: web.Request, resources: ExitStack, *, query_id: str, max_body_bytes: int
) -> Query:
    """Read a request to its end. What it holds in memory is released with `resources`.

    Raises:
        ClickHouseError: the body is too large or damaged, or a parameter makes no sense.
    """
    parameters = dict(request.query)
    if parameters.get("compress") == "1" or parameters.get("decompress") == "1":
        raise ClickHouseError(
            48,
            "NOT_IMPLEMENTED",
            "The embedded ClickHouse has no compress=1 and decompress=1 (compressed blocks): "
            "use Accept-Encoding with enable_http_compression=1, and Content-Encoding",
        )
    body = _Body(request, max_body_bytes)
    external: list[ExternalTable] = []
    if request.content_type == "multipart/form-data":
        external = await _read_form(request, parameters, resources, body)
        text = parameters.get("query", "").encode()
        statement, data, encoding = parse(text), None, None
        if statement.kind == "insert":
            text, data = _inline(text, statement, resources)
    else:
        text, statement, data, encoding = await _read_statement(
            parameters.get("query", "").encode(), body, resources
        )
    settings, bound = settings_of(parameters)
    headers = request.headers
    return Query(
        text=text,
        statement=statement,
        data=data,
        encoding=encoding,
        database=parameters.get("database") or headers.get("X-ClickHouse-Database"),
        settings=settings,
        parameters=bound,
        default_format=parameters.get(
            "default_format", headers.get("X-ClickHouse-Format", "TabSeparated")
        ),
        external=external,
        tag=query_id,
        session=parameters.get("session_id") or None,
        session_timeout=_session_timeout(parameters),
        session_must_exist=parameters.get("session_check") == "1",
    )


class _Body:
    """The body of a request, chunk by chunk, never more than the limit."""

    def __init__(self, request: web.Request, limit: int) -> None:
        self.encoding = request.headers.get("Content-Encoding", "").lower() or None
        self._content = request.content
        self._limit = limit
        self._size = 0
        if (request.content_length or 0) > limit:
            raise self._too_large()

    async def chunk(self) -> bytes:
        """The next bytes; none at the end."""
        data = await self._content.read(_CHUNK)
        self.count(len(data))
        return data

    async def read(self, at_least: int) -> bytes:
        """As many bytes as that, or all there are."""
        chunks = []
        while at_least > 0 and (chunk := await self.chunk()):
            chunks.append(chunk)
            at_least -= len(chunk)
        return b"".join(chunks)

    async def spool(self, spool: Spool) -> None:
        """Write what is left to `spool`."""
        while chunk := await self.chunk():
            spool.write(chunk)

    def count(self, size: int) -> None:
        """Account for `size` bytes that were read."""
        self._size += size
        if self._size > self._limit:
            raise self._too_large()

    def _too_large(self) -> ClickHouseError:
        return ClickHouseError(
            229,
            "QUERY_IS_TOO_LARGE",
            f"The body is larger than {self._limit} bytes: send smaller blocks "
            "or start the server with a larger --max-body-bytes",
        )


async def _read_statement(
    prefix: bytes, body: _Body, resources: ExitStack
) -> tuple[bytes, Statement, Spool | None, str | None]:
    """The statement in the parameter `query` and the body, and the rows that follow it."""
    if prefix.strip():
        prefix += b"\n"
        statement = parse(prefix)
        if statement.kind == "insert" and not prefix[statement.data_at :].strip():
            data = resources.enter_context(Spool())
            await body.spool(data)
            return prefix, statement, data, body.encoding
    if body.encoding is None:
        text = prefix + await body.read(_HEAD_BYTES)
    else:
        compressed = await body.read(_ALL)
        text = prefix + await asyncio.to_thread(decompress, compressed, body.encoding)
    statement = parse(text)
    if statement.kind == "insert":
        text, data = _inline(text, statement, resources)
        await body.spool(data)
        return text, statement, data, None
    rest = await body.read(_MAX_QUERY_BYTES)
    if len(text) + len(rest) > _MAX_QUERY_BYTES:
        raise ClickHouseError(
            229, "QUERY_IS_TOO_LARGE", f"The statement is longer than {_MAX_QUERY_BYTES} bytes"
        )
    return (text + rest, parse(text + rest), None, None) if rest else (text, statement, None, None)


def _inline(text: bytes, statement: Statement, resources: ExitStack) -> tuple[bytes, Spool]:
    """An INSERT and its rows, apart."""
    data = resources.enter_context(Spool())
    data.write(memoryview(text)[statement.data_at :])
    return text[: statement.data_at], data


async def _read_form(
    request: web.Request, parameters: dict[str, str], resources: ExitStack, body: _Body
) -> list[ExternalTable]:
    """The fields of a form, added to `parameters`, and its files, which are temporary tables."""
    tables = []
    async for part in await request.multipart():
        if not isinstance(part, BodyPartReader) or not part.name:
            continue
        if part.filename is None:
            parameters[part.name] = await part.text()
            body.count(len(parameters[part.name]))
            continue
        data = resources.enter_context(Spool())
        while chunk := await part.read_chunk(_CHUNK):
            body.count(len(chunk))
            data.write(chunk)
        tables.append((part.name, data))
    return [_external_table(name, parameters, data) for name, data in tables]


def _external_table(name: str, parameters: Mapping[str, str], data: Spool) -> ExternalTable:
    structure = parameters.get(f"{name}_structure")
    if structure is None:
        types = parameters.get(f"{name}_types")
        if types is None:
            raise ClickHouseError(
                36,
                "BAD_ARGUMENTS",
                f"The external table {name!r} needs the parameter {name}_structure or {name}_types",
            )
        structure = ", ".join(
            f"_{number} {type_}" for number, type_ in enumerate(types.split(","), 1)
        )
    return ExternalTable(name, structure, parameters.get(f"{name}_format", "TabSeparated"), data)


def _session_timeout(parameters: Mapping[str, str]) -> float:
    text = parameters.get("session_timeout", "60")
    if not text.isdigit() or not 0 < int(text) <= 3600:
        raise ClickHouseError(
            374, "INVALID_SESSION_TIMEOUT", f"Invalid session timeout: {text!r} (1 to 3600 seconds)"
        )
    return float(text)
