"""What an error of ClickHouse means for the rows that met it: try again, mend the schema, drop a row."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal

from clickhouse_connect.driver.exceptions import OperationalError, ProgrammingError

__all__ = ["Trouble", "classify"]

Kind = Literal["later", "schema", "data", "stop", "unknown"]

_CODE = re.compile(r"Code: (\d+)\. DB::Exception: (.*)", re.DOTALL)
_COLUMN = re.compile(r"while converting column `([^`]+)`")
_NOISE = re.compile(r"\s*(\(version [^()]*(?:\([^()]*\))?\)|\(for url [^)]*\))")
_HTTP_STATUS = re.compile(r"HTTP status (\d{3})")
_LONGEST = 300

# The server is at its limit, or parts of it are away: it will take the same rows later.
_LATER = frozenset(
    (
        159,  # TIMEOUT_EXCEEDED
        160,  # TOO_SLOW
        173,  # CANNOT_ALLOCATE_MEMORY
        198,  # DNS_ERROR
        201,  # QUOTA_EXCEEDED
        202,  # TOO_MANY_SIMULTANEOUS_QUERIES
        203,  # NO_FREE_CONNECTION
        209,  # SOCKET_TIMEOUT
        210,  # NETWORK_ERROR
        225,  # NO_ZOOKEEPER
        236,  # ABORTED
        241,  # MEMORY_LIMIT_EXCEEDED
        242,  # TABLE_IS_READ_ONLY
        243,  # NOT_ENOUGH_SPACE
        244,  # UNEXPECTED_ZOOKEEPER_ERROR
        252,  # TOO_MANY_PARTS
        279,  # ALL_CONNECTION_TRIES_FAILED
        285,  # TOO_FEW_LIVE_REPLICAS
        286,  # UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE
        289,  # REPLICA_IS_NOT_IN_QUORUM
        319,  # UNKNOWN_STATUS_OF_INSERT
        373,  # SESSION_IS_LOCKED
        394,  # QUERY_WAS_CANCELLED: the server is stopping
        425,  # SYSTEM_ERROR
        439,  # CANNOT_SCHEDULE_TASK
        473,  # DEADLOCK_AVOIDED
        499,  # S3_ERROR
        519,  # NO_REMOTE_SHARD_AVAILABLE
        659,  # UNKNOWN_STATUS_OF_TRANSACTION
        722,  # ASYNC_LOAD_WAIT_FAILED: the server is starting
        745,  # SERVER_OVERLOADED
        999,  # KEEPER_EXCEPTION
    )
)
# The table is not, or no longer, what the rows were made for.
_SCHEMA = frozenset(
    (
        8,  # THERE_IS_NO_COLUMN
        10,  # NOT_FOUND_COLUMN_IN_BLOCK
        15,  # DUPLICATE_COLUMN
        16,  # NO_SUCH_COLUMN_IN_TABLE
        20,  # NUMBER_OF_COLUMNS_DOESNT_MATCH
        44,  # ILLEGAL_COLUMN
        47,  # UNKNOWN_IDENTIFIER
        50,  # UNKNOWN_TYPE
        53,  # TYPE_MISMATCH
        60,  # UNKNOWN_TABLE
        70,  # CANNOT_CONVERT_TYPE
        81,  # UNKNOWN_DATABASE
        122,  # INCOMPATIBLE_COLUMNS
    )
)
# One row, or some, cannot be stored; the others can.
_DATA = frozenset(
    (
        6,  # CANNOT_PARSE_TEXT
        26,  # CANNOT_PARSE_QUOTED_STRING
        27,  # CANNOT_PARSE_INPUT_ASSERTION_FAILED
        38,  # CANNOT_PARSE_DATE
        41,  # CANNOT_PARSE_DATETIME
        69,  # ARGUMENT_OUT_OF_BOUND
        72,  # CANNOT_PARSE_NUMBER
        117,  # INCORRECT_DATA
        128,  # TOO_LARGE_ARRAY_SIZE
        131,  # TOO_LARGE_STRING_SIZE
        153,  # ILLEGAL_DIVISION
        190,  # SIZES_OF_ARRAYS_DONT_MATCH
        321,  # VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE
        349,  # CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN
        376,  # CANNOT_PARSE_UUID
        395,  # FUNCTION_THROW_IF_VALUE_IS_NON_ZERO
        407,  # DECIMAL_OVERFLOW
        467,  # CANNOT_PARSE_BOOL
        469,  # VIOLATED_CONSTRAINT
        675,  # CANNOT_PARSE_IPV4
        676,  # CANNOT_PARSE_IPV6
        691,  # UNKNOWN_ELEMENT_OF_ENUM
    )
)
# Nothing that waiting or leaving rows out would mend.
_STOP = frozenset(
    (
        48,  # NOT_IMPLEMENTED
        62,  # SYNTAX_ERROR
        73,  # UNKNOWN_FORMAT
        115,  # UNKNOWN_SETTING
        164,  # READONLY
        192,  # UNKNOWN_USER
        193,  # WRONG_PASSWORD
        194,  # REQUIRED_PASSWORD
        497,  # ACCESS_DENIED
        516,  # AUTHENTICATION_FAILED
    )
)
_KINDS: dict[int, Kind] = {
    **dict.fromkeys(_LATER, "later"),
    **dict.fromkeys(_SCHEMA, "schema"),
    **dict.fromkeys(_DATA, "data"),
    **dict.fromkeys(_STOP, "stop"),
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """An error, classified.

    Attributes:
        kind: `later`: the same rows may pass later; `schema`: the table is not as expected; `data`: one
            or more rows can never pass; `stop`: somebody has to mend something; `unknown`.
        reason: one line, without the server's address and version.
        column: the column that ClickHouse names, if it does.
        after: how long to wait before the next attempt, in seconds; None: no opinion.
    """

    kind: Kind
    reason: str
    column: str | None = None
    after: float | None = None


def classify(error: Exception) -> Trouble:
    """What an error of a ClickHouse client, or of the network below it, means for the rows."""
    text = str(error)
    found = _CODE.search(text)
    code = getattr(error, "code", None) or (int(found[1]) if found else None)
    message = found[2] if found else _network_reason(error) or text or type(error).__name__
    reason = " ".join(_NOISE.sub("", message).split())[:_LONGEST]
    column = _COLUMN.search(message)
    kind = _kind(error, code, text)
    if code == 252 and "partitions for single INSERT block" in text:
        kind = "stop"  # the same code as too many parts, but time does not heal it
    if kind == "data" and "while pushing to view" in text:
        # The table has the rows already; with other tokens, as bisecting needs, it would have them twice.
        kind = "stop"
    return Trouble(
        kind, reason, column=column[1] if column else None, after=5.0 if code == 252 else None
    )


def _kind(error: Exception, code: int | None, text: str) -> Kind:
    if code is not None:
        return _KINDS.get(code, "unknown")
    if isinstance(error, OSError):  # of the network; a timeout is one too
        return "later"
    if isinstance(error, ProgrammingError):  # the client refuses: a setting that is not known
        return "stop"
    status = _HTTP_STATUS.search(text)
    if status is not None:  # of a proxy on the way
        return "later" if status[1][0] == "5" or status[1] in ("408", "429") else "stop"
    return "later" if isinstance(error, OperationalError) else "unknown"


def _network_reason(error: BaseException) -> str | None:
    """What the operating system said, below all that the layers of a client have wrapped around it."""
    reason = None
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, OSError) and below.errno is not None:
            reason = os.strerror(below.errno) if below.errno > 0 else below.strerror
        elif isinstance(below, TimeoutError):
            reason = "no answer in time"
        below = below.__cause__ or below.__context__
    return reason
