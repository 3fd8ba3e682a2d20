"""ClickHouse's HTTP conventions: parameters, status codes, content types, compression. No I/O here."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import cramjam

from demo.clickhouse.errors import ClickHouseError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "content_type",
    "decompress",
    "encoder",
    "is_local_name",
    "settings_of",
    "status_of",
]

# Parameters of a request that are not settings of the engine.
_TRANSPORT = frozenset(
    (
        "query",
        "database",
        "default_format",
        "session_id",
        "session_timeout",
        "session_check",
        "query_id",
        "user",
        "password",
        "quota_key",
        "role",
        "compress",
        "decompress",
        "close_session",
        "stacktrace",
        # about the HTTP answer, which this server gives when the query is done and not before
        "wait_end_of_query",
        "buffer_size",
        "send_progress_in_http_headers",
        "http_headers_progress_interval_ms",
        "enable_http_compression",
        "http_zlib_compression_level",
        "http_write_exception_in_output_format",
        "cancel_http_readonly_queries_on_client_close",
        "client_protocol_version",
    )
)

_BAD_REQUEST = frozenset(
    (
        "SYNTAX_ERROR",
        "INCORRECT_DATA",
        "TYPE_MISMATCH",
        "TOO_DEEP_AST",
        "TOO_BIG_AST",
        "UNEXPECTED_AST_STRUCTURE",
        "UNKNOWN_ELEMENT_IN_AST",
        "UNKNOWN_TYPE_OF_AST_NODE",
        "VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE",
        "BAD_REQUEST_PARAMETER",
        "INVALID_SESSION_TIMEOUT",
    )
)
_NOT_FOUND = frozenset(
    (
        "UNKNOWN_TABLE",
        "UNKNOWN_DATABASE",
        "UNKNOWN_FUNCTION",
        "UNKNOWN_AGGREGATE_FUNCTION",
        "UNKNOWN_IDENTIFIER",
        "UNKNOWN_TYPE",
        "UNKNOWN_STORAGE",
        "UNKNOWN_SETTING",
        "UNKNOWN_FORMAT",
        "UNKNOWN_DATABASE_ENGINE",
        "UNKNOWN_TYPE_OF_QUERY",
        "UNKNOWN_DIRECTION_OF_SORTING",
        "SESSION_NOT_FOUND",
    )
)
_STATUS = {
    "NOT_IMPLEMENTED": 501,
    "QUERY_IS_TOO_LARGE": 413,
    "TIMEOUT_EXCEEDED": 408,
    "SESSION_IS_LOCKED": 423,
}

_CONTENT_TYPES = {
    "json": "application/json; charset=UTF-8",
    "jsoneachrow": "application/x-ndjson; charset=UTF-8",
    "csv": "text/csv; charset=UTF-8; header=absent",
    "csvwithnames": "text/csv; charset=UTF-8; header=present",
    "tabseparated": "text/tab-separated-values; charset=UTF-8",
    "tsv": "text/tab-separated-values; charset=UTF-8",
    "xml": "application/xml; charset=UTF-8",
}
_BINARY = ("native", "rowbinary", "arrow", "parquet", "orc", "avro", "msgpack", "protobuf")

_ENCODERS: dict[str, Callable[[bytes], cramjam.Buffer]] = {
    "lz4": cramjam.lz4.compress,
    "zstd": cramjam.zstd.compress,
    "gzip": cramjam.gzip.compress,
    "br": cramjam.brotli.compress,
    "deflate": cramjam.zlib.compress,
}
_DECODERS: dict[str, Callable[[bytes], cramjam.Buffer]] = {
    "lz4": cramjam.lz4.decompress,
    "zstd": cramjam.zstd.decompress,
    "gzip": cramjam.gzip.decompress,
    "br": cramjam.brotli.decompress,
    "deflate": cramjam.zlib.decompress,
}


def settings_of(parameters: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The settings among a request's parameters, and the values of the query's `{name:Type}`."""
    settings = {}
    bound = {}
    for name, value in parameters.items():
        if name.startswith("param_"):
            bound[name.removeprefix("param_")] = value
        elif name not in _TRANSPORT:
            settings[name] = value
    return settings, bound


def status_of(error: ClickHouseError) -> int:
    """The HTTP status that a ClickHouse server gives an error."""
    if error.name in _BAD_REQUEST or error.name.startswith("CANNOT_PARSE"):
        return 400
    if error.name in _NOT_FOUND:
        return 404
    return _STATUS.get(error.name, 500)


def content_type(result_format: str | None) -> str:
    """The media type of a result in a ClickHouse format."""
    name = (result_format or "").lower()
    if name.startswith(_BINARY):
        return "application/octet-stream"
    return _CONTENT_TYPES.get(name, "text/plain; charset=UTF-8")


def encoder(
    accept_encoding: str, *, enabled: bool
) -> tuple[str, Callable[[bytes], cramjam.Buffer]] | None:
    """How to compress an answer: the first encoding of the client's list that is known here.

    As with a ClickHouse server, nothing is compressed unless the request says
    `enable_http_compression=1`.
    """
    if not enabled:
        return None
    for choice in accept_encoding.split(","):
        name = choice.partition(";")[0].strip().lower()
        if name in _ENCODERS:
            return name, _ENCODERS[name]
    return None


def decompress(body: bytes, encoding: str) -> bytes:
    """A compressed body that begins with its statement.

    Raises:
        ClickHouseError: the encoding is not known, or the body is damaged.
    """
    decoder = _DECODERS.get(encoding)
    if decoder is None:
        raise ClickHouseError(
            89, "UNKNOWN_COMPRESSION_METHOD", f"Unknown compression method {encoding!r}"
        )
    try:
        return bytes(decoder(body))
    except cramjam.DecompressionError as error:
        raise ClickHouseError(
            271, "CANNOT_DECOMPRESS", f"Cannot decompress the body: {error}"
        ) from error


def is_local_name(address: str) -> bool:
    """Whether `host`, `host:port` or `scheme://host:port` is a name of this machine for itself."""
    host = urlsplit(address if "://" in address else f"//{address}").hostname
    return host in ("localhost", "127.0.0.1", "::1")
