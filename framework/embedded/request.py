"""Read an HTTP request into a query: its statement, its parameters, its data.

The statement is in the parameter `query`, in the body, or in both, one after the other; the rows of an
INSERT follow it, and the body may be compressed. Rows are spooled as they arrive.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import cramjam
from aiohttp import BodyPartReader

from .query import ClickHouseError, ExternalTable, Query, Spool, Statement, parse_statement

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack

    from aiohttp import web

COMPRESSIONS: dict[str, Any] = {
    "lz4": cramjam.lz4,
    "zstd": cramjam.zstd,
    "gzip": cramjam.gzip,
    "br": cramjam.brotli,
    "deflate": cramjam.zlib,
}
"""The modules of cramjam by the names of HTTP content encodings."""

_CHUNK = 1024 * 1024

_TRANSPORT = frozenset((
    "query", "database", "default_format", "session_id", "query_id", "enable_http_compression",
    "wait_end_of_query", "send_progress_in_http_headers", "http_headers_progress_interval_ms",
    "client_protocol_version",
))  # fmt: skip
"""Parameters of a request that are not settings of the engine."""


async def read_query(
    request: web.Request, resources: ExitStack, *, query_id: str, max_body_bytes: int
) -> Query:
    """Read a request to its end. `resources` releases the memory of its data.

    Raises:
        ClickHouseError: the body is too large or damaged, or a parameter is not valid.
    """
    parameters = dict(request.query)
    body = _Body(request, max_body_bytes)
    external: list[ExternalTable] = []
    if request.content_type == "multipart/form-data":
        external = await _read_form(request, parameters, resources, body)
        text = parameters.get("query", "").encode()
        statement, data, encoding = parse_statement(text), None, None
        if statement.kind == "insert":
            text, data = _inline(text, statement, resources)
    else:
        text, statement, data, encoding = await _read_statement(
            parameters.get("query", "").encode(), body, resources
        )
    settings, bound = _split_parameters(parameters)
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
    )


class _Body:
    """The body of a request, read chunk by chunk up to the limit."""

    def __init__(self, request: web.Request, limit: int) -> None:
        self.encoding = request.headers.get("Content-Encoding", "").lower() or None
        if self.encoding not in (None, *COMPRESSIONS):
            what = f"Unknown compression method {self.encoding!r}"
            raise ClickHouseError(89, "UNKNOWN_COMPRESSION_METHOD", what)
        self._content = request.content
        self._limit = limit
        self._size = 0
        if (request.content_length or 0) > limit:
            raise self._too_large()

    async def chunk(self) -> bytes:
        """Read the next bytes; none at the end."""
        data = await self._content.read(_CHUNK)
        self.count(len(data))
        return data

    async def read(self) -> bytes:
        """Read all bytes until the end."""
        chunks = []
        while chunk := await self.chunk():
            chunks.append(chunk)
        return b"".join(chunks)

    async def spool(self, spool: Spool) -> None:
        """Write the rest to `spool`."""
        while chunk := await self.chunk():
            spool.write(chunk)

    def count(self, size: int) -> None:
        """Count `size` bytes towards the limit."""
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
    """Read the statement from the parameter `query` and the body, and the rows that follow it."""
    if prefix.strip():
        prefix += b"\n"
        statement = parse_statement(prefix)
        if statement.kind == "insert" and not prefix[statement.data_at :].strip():
            data = resources.enter_context(Spool())
            await body.spool(data)
            return prefix, statement, data, body.encoding
    text = prefix + await body.read()
    if body.encoding is not None:
        text = prefix + await asyncio.to_thread(_decompress, text[len(prefix) :], body.encoding)
    statement = parse_statement(text)
    if statement.kind != "insert":
        return text, statement, None, None
    text, data = _inline(text, statement, resources)
    return text, statement, data, None


def _inline(text: bytes, statement: Statement, resources: ExitStack) -> tuple[bytes, Spool]:
    """Separate an INSERT from its rows."""
    data = resources.enter_context(Spool())
    data.write(memoryview(text)[statement.data_at :])
    return text[: statement.data_at], data


async def _read_form(
    request: web.Request, parameters: dict[str, str], resources: ExitStack, body: _Body
) -> list[ExternalTable]:
    """Add the fields of a form to `parameters`; return its files as temporary tables."""
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
        what = f"The external table {name!r} needs the parameter {name}_structure"
        raise ClickHouseError(36, "BAD_ARGUMENTS", what)
    return ExternalTable(name, structure, parameters.get(f"{name}_format", "TabSeparated"), data)


def _split_parameters(parameters: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Separate the settings of a request from the values of the query's `{name:Type}`."""
    settings = {}
    bound = {}
    for name, value in parameters.items():
        if name.startswith("param_"):
            bound[name.removeprefix("param_")] = value
        elif name not in _TRANSPORT:
            settings[name] = value
    return settings, bound


def _decompress(body: bytes, encoding: str) -> bytes:
    """Decompress a body. Raises ClickHouseError: it is damaged."""
    try:
        return bytes(COMPRESSIONS[encoding].decompress(body))
    except cramjam.DecompressionError as error:
        raise ClickHouseError(
            271, "CANNOT_DECOMPRESS", f"Cannot decompress the body: {error}"
        ) from error
