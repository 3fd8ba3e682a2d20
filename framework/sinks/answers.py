"""What an error of a sink means: try again later, or an answer about rows, the table, or the set-up.

    later     the network, a lost connection, a server that is overloaded, read-only, starting or ending: the
              same rows are written again later
    schema    the table is not as expected: it is read again; if it is as before, the answer is about rows
    rows      a definite answer. Rows are bisected: those that it is about go to `reduce_err`, the others are
              written
    stop      login, permissions, syntax, unknown settings: the worker ends
    unknown   no answer of the server, such as an error of our own

**The rule for the set-up**: if a flush of 100 rows or more is refused as a whole, in the same words, and
these are not about a value (`Answer.about_values`), then the set-up is wrong, and the worker ends with them.
Smaller flushes are counted together, until a row is written. What a constraint or a parser refuses is always
about values: such rows go to `reduce_err`, however many they are (`err_limit` limits them).

**The rule for "later"**: a server may say so for ever about one row, such as a trigger that raises a
serialization failure. After 6 such answers about the same rows (`Patience`), these are bisected too, where
the answer may be about rows (`Answer.may_be_of_rows`). A row that is refused alone goes to `reduce_err`, if
the same server writes others of the flush. If it writes none, the rows wait: that is no answer about rows.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

import anyio
import structlog

from ..errors import MANY, KmrError, SinkError, SinkUnavailable, StrategyError, TableRefused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping

T = TypeVar("T")
_log = structlog.get_logger(__name__)

Kind = Literal["later", "schema", "rows", "stop", "unknown"]

_LONGEST_REASON: Final = 300
_MOST_LATE: Final = 64  # parts that are put off before any is written
_PATIENT: Final = 6  # attempts: 5 to 10 seconds, with the pauses of `kmr.reducers.flushing`
_RECONNECT: Final = 0.5  # seconds between attempts to reach a server that is not there yet


@dataclass(frozen=True, slots=True)
class Answer:
    """The meaning of an error for the rows.

    Attributes:
        reason: one line, without the server's address and version.
        about_values: the answer is about values of a row, never about the set-up.
        after: seconds to wait before the next attempt; None: the stage decides.
        not_begun: the server has certainly not begun to process the request.
        message: the server's words, of any length.
        may_be_of_rows: of "later": fewer rows, or others, may be written now.
    """

    kind: Kind
    reason: str
    about_values: bool = False
    after: float | None = None
    not_begun: bool = False
    message: str = ""
    may_be_of_rows: bool = False


async def connected(
    server: object,
    seconds: float,
    connect: Callable[[], Awaitable[T]],
    meaning: Callable[[Exception], Answer],
) -> T:
    """Connect; wait so many seconds for a server that is not there yet.

    Raises:
        SinkError: it does not answer in time, or refuses the connection.
    """
    deadline = anyio.current_time() + seconds
    while True:
        try:
            return await connect()
        except KmrError:
            raise
        except Exception as error:  # noqa: BLE001  `meaning` knows those of its client
            answer = meaning(error)
            if answer.kind != "later":
                raise sink_error(f"{server} refuses the connection", answer) from None
            if anyio.current_time() >= deadline:
                raise SinkUnavailable(
                    f"{server} did not answer for {seconds:g} s: {answer.reason}. Start it, or correct "
                    "the URL"
                ) from None
        await anyio.sleep(_RECONNECT)


def sink_error(what: str, answer: Answer) -> SinkError:
    """Return the error for an answer to anything but rows; `what` failed."""
    kinds: dict[Kind, type[SinkError]] = {
        "later": SinkUnavailable, "rows": TableRefused, "schema": TableRefused,
    }  # fmt: skip
    return kinds.get(answer.kind, SinkError)(f"{what}: {answer.reason}")


class SetUp:
    """Applies the rule for the set-up to the flushes of one writer."""

    def __init__(self) -> None:
        self._reason = ""
        self._rows = 0

    def judge(
        self, subject: object, rows: int, refused: Mapping[int, str], general: Collection[str]
    ) -> None:
        """Note which rows were refused.

        Args:
            rows: how many there are.
            general: the reasons that are not about values.

        Raises:
            StrategyError: the set-up is wrong.
        """
        words = set(refused.values())
        if len(refused) < rows or len(words) != 1 or not words <= set(general):
            self._rows = 0
            return
        (reason,) = words
        self._rows = rows + (self._rows if reason == self._reason else 0)
        self._reason = reason
        if self._rows >= MANY:
            raise StrategyError(
                f"{subject}: all of the last {self._rows} rows were refused for one reason: {reason}. Mend "
                "the table or the strategy"
            )


class Patience:
    """Applies the rule for "later" to the ranges of one writer."""

    def __init__(self) -> None:
        self._attempts: dict[str, int] = {}

    def note(self, token: str, reason: str) -> None:
        """Note that the rows of a range are to be written later."""
        attempts = self._attempts[token] = self._attempts.get(token, 0) + 1
        if attempts == _PATIENT:
            _log.warning(
                "a flush was put off again and again: its rows are bisected if fewer may be written",
                token=token,
                reason=reason,
            )

    def is_over(self, token: str) -> bool:
        """Return whether an answer "later" about these rows is taken for one about some of them."""
        return self._attempts.get(token, 0) >= _PATIENT

    def forget(self) -> None:
        """Forget all ranges: they are written."""
        self._attempts = {}


class PutOff(Generic[T]):
    """Applies the rule for "later" to the parts of one flush: if none is written, all rows wait.

    Attributes:
        is_written: a part is written.
    """

    def __init__(self) -> None:
        self.is_written = False
        self._answers: list[T] = []

    def note(self, answer: T) -> None:
        """Note the answer "later" about a part."""
        self._answers.append(answer)

    @property
    def reason_to_wait(self) -> T | None:
        """The first answer, while no part is written."""
        return self._answers[0] if self._answers and not self.is_written else None

    @property
    def is_hopeless(self) -> bool:
        """Whether so many parts are put off, and none written, that the server, and no row, is the reason."""
        return len(self._answers) > _MOST_LATE and not self.is_written


def put_off(reason: str) -> str:
    """Return the reason of a row that a server puts off each time, and writes others."""
    return f"{reason} (each of {_PATIENT} attempts; other rows are written)"


def one_line(text: str) -> str:
    """Return the beginning of a text in one line."""
    return " ".join(text.split())[:_LONGEST_REASON]


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, then its causes in the layers of the client."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


# PostgreSQL: SQLSTATEs and their classes. Connections, resources, operators, the system; transactions.
_POSTGRES_LATER: Final = (
    "08",
    "53",
    "57",
    "58",
    "40001",
    "40003",
    "40P01",
    "25006",
    "25P03",
    "25P04",
    "55P03",
)
# Of these: transactions that collide, locks, memory. The others are about the server.
_POSTGRES_OF_ROWS: Final = ("40", "53200", "53400", "55P03")
_POSTGRES_SCHEMA: Final = ("42P01", "42703", "42804", "42846")
_POSTGRES_VALUES: Final = ("22", "23", "44")  # values that cannot be stored, and constraints
_POSTGRES_STOP: Final = ("28", "3D", "3F", "42501")
_ROW_SECURITY: Final = (
    "ExecWithCheckOptions"  # the server's function; its message is in the server's language
)


def of_postgres(error: Exception) -> Answer:
    """Return the meaning of an error of psycopg, or of the network below it."""
    import psycopg

    if isinstance(error, TimeoutError):
        return Answer("later", "the server does not answer")
    if isinstance(error, OSError):
        return Answer("later", one_line(str(error)))
    if not isinstance(error, psycopg.Error):
        return Answer("unknown", one_line(str(error)))
    diag = error.diag
    text = diag.message_primary or str(error)
    if error.sqlstate is None:
        lost = isinstance(error, psycopg.OperationalError)
        refused = lost and ("authentication failed" in text or "does not exist" in text)
        return Answer("stop" if refused else "later" if lost else "unknown", one_line(text))
    if diag.source_function == _ROW_SECURITY:
        return Answer("rows", one_line(text))
    return of_sqlstate(error.sqlstate, text, diag.message_detail)


def of_sqlstate(state: str, text: str, detail: str | None = None) -> Answer:
    """Return the meaning of an answer of PostgreSQL."""
    reason = one_line(f"{text}: {detail}" if detail else text)
    kinds: tuple[tuple[Kind, tuple[str, ...]], ...] = (
        ("later", _POSTGRES_LATER),
        ("schema", _POSTGRES_SCHEMA),
        ("stop", _POSTGRES_STOP),
    )
    kind: Kind = next((kind for kind, states in kinds if state.startswith(states)), "rows")
    return Answer(
        kind,
        reason,
        about_values=state.startswith(_POSTGRES_VALUES),
        may_be_of_rows=kind == "later" and state.startswith(_POSTGRES_OF_ROWS),
    )


class PartRefused(Exception):
    """A destination refuses some of the rows of a part; which ones is not known. The message says why."""


# Spark: values that cannot be cast, constraints, texts that are too long for their column, and what
# `raise_error` says.
_SPARK_VALUES: Final = re.compile(
    r"^(?:Caused by: [\w.$]+: )?(.*)\bSQLSTATE: (?:2[23]\w{3}|54\w{3}|P0001)\b"
    r"|^.*?(\[?DELTA_(?:VIOLATE_CONSTRAINT|NOT_NULL_CONSTRAINT|EXCEED_CHAR).*(?:\n - .*)*)"
    r"|^(?:Caused by)?: java\.(?:lang|time)\.((?:Arithmetic|ClassCast|DateTime|NumberFormat)Exception.*)",
    re.MULTILINE,
)


# Spark: what Python code in an executor raised, and that it has ended its process.
_SPARK_PYTHON: Final = re.compile(
    r"from the Python worker:.*\nTraceback[^\n]*\n(?:[ \n][^\n]*\n?)*(\S[^\n]*)"
    r"|(Python worker exited unexpectedly[^\n]*)",
    re.DOTALL,
)


def refusal_of_spark(error: Exception, general: set[str] | None = None) -> str | None:
    """Return why Spark refuses rows for a value in them; None if an error is about something else.

    Args:
        general: gets reasons that may be about the set-up: those of Python code in an executor.
    """
    text = str(error)
    if isinstance(error, PartRefused):
        return one_line(text)
    if (raised := _SPARK_PYTHON.search(text)) is not None:
        reason = one_line(raised[1] or raised[2])
        if general is not None:
            general.add(reason)
        return reason
    found = _SPARK_VALUES.search(text)
    return None if found is None else one_line(found[1] or found[2] or found[3])


_CAUSES: Final = re.compile(r"^(?:Caused by)?: (.*)", re.MULTILINE)


def may_be_of_rows(error: Exception) -> bool:
    """Return whether an error is an answer of Spark, and not of the way to it."""
    kind = type(error)
    is_lost = kind.__name__ in ("Py4JNetworkError", "SparkConnectGrpcException", "RetriesExceeded")
    return kind.__module__.startswith(("py4j", "pyspark")) and not is_lost


def cause_of_spark(error: Exception) -> str:
    """Return the innermost cause of an error of Spark, in one line."""
    text = str(error) or type(error).__name__
    causes = _CAUSES.findall(text)
    return one_line(causes[-1] if causes else text.splitlines()[0])


_CODE: Final = re.compile(r"Code: (\d+)\. DB::Exception: (.*)", re.DOTALL)
_NOISE: Final = re.compile(r"\s*(\(version [^()]*(?:\([^()]*\))?\)|\(for url [^)]*\))")
_HTTP_STATUS: Final = re.compile(r"HTTP status (\d{3})")

# ClickHouse.
# The server is overloaded, or parts of it are unreachable: it will accept the same rows later.
_CLICKHOUSE_LATER: Final = {
    159: "TIMEOUT_EXCEEDED", 160: "TOO_SLOW", 173: "CANNOT_ALLOCATE_MEMORY", 198: "DNS_ERROR",
    201: "QUOTA_EXCEEDED", 202: "TOO_MANY_SIMULTANEOUS_QUERIES", 203: "NO_FREE_CONNECTION",
    209: "SOCKET_TIMEOUT", 210: "NETWORK_ERROR", 225: "NO_ZOOKEEPER", 236: "ABORTED",
    241: "MEMORY_LIMIT_EXCEEDED", 242: "TABLE_IS_READ_ONLY", 243: "NOT_ENOUGH_SPACE",
    244: "UNEXPECTED_ZOOKEEPER_ERROR", 252: "TOO_MANY_PARTS", 279: "ALL_CONNECTION_TRIES_FAILED",
    285: "TOO_FEW_LIVE_REPLICAS", 286: "UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE",
    289: "REPLICA_IS_NOT_IN_QUORUM", 319: "UNKNOWN_STATUS_OF_INSERT", 341: "UNFINISHED",
    373: "SESSION_IS_LOCKED", 95: "CANNOT_READ_FROM_SOCKET", 96: "CANNOT_WRITE_TO_SOCKET",
    40: "CHECKSUM_DOESNT_MATCH", 733: "TABLE_IS_BEING_RESTARTED",
    394: "QUERY_WAS_CANCELLED", 425: "SYSTEM_ERROR", 439: "CANNOT_SCHEDULE_TASK",
    473: "DEADLOCK_AVOIDED", 499: "S3_ERROR", 517: "CANNOT_ASSIGN_ALTER",
    519: "NO_REMOTE_SHARD_AVAILABLE",
    659: "UNKNOWN_STATUS_OF_TRANSACTION", 722: "ASYNC_LOAD_WAIT_FAILED", 745: "SERVER_OVERLOADED",
    999: "KEEPER_EXCEPTION",
}  # fmt: skip
# Of these: the server refuses before it writes anything.
_NOT_BEGUN: Final = frozenset((201, 202, 203, 242, 252, 745))
# Of these: time and memory, which fewer rows take less of.
_CLICKHOUSE_OF_ROWS: Final = frozenset((159, 160, 173, 241))
# The table does not, or no longer, fit the rows.
_CLICKHOUSE_SCHEMA: Final = {
    8: "THERE_IS_NO_COLUMN", 10: "NOT_FOUND_COLUMN_IN_BLOCK", 15: "DUPLICATE_COLUMN",
    16: "NO_SUCH_COLUMN_IN_TABLE", 20: "NUMBER_OF_COLUMNS_DOESNT_MATCH", 44: "ILLEGAL_COLUMN",
    47: "UNKNOWN_IDENTIFIER", 50: "UNKNOWN_TYPE", 53: "TYPE_MISMATCH", 60: "UNKNOWN_TABLE",
    70: "CANNOT_CONVERT_TYPE", 81: "UNKNOWN_DATABASE", 122: "INCOMPATIBLE_COLUMNS",
}  # fmt: skip
# Always about the values of a row.
_CLICKHOUSE_VALUES: Final = {
    6: "CANNOT_PARSE_TEXT", 26: "CANNOT_PARSE_QUOTED_STRING",
    27: "CANNOT_PARSE_INPUT_ASSERTION_FAILED", 38: "CANNOT_PARSE_DATE",
    41: "CANNOT_PARSE_DATETIME", 69: "ARGUMENT_OUT_OF_BOUND", 72: "CANNOT_PARSE_NUMBER",
    117: "INCORRECT_DATA", 128: "TOO_LARGE_ARRAY_SIZE", 131: "TOO_LARGE_STRING_SIZE",
    153: "ILLEGAL_DIVISION", 190: "SIZES_OF_ARRAYS_DONT_MATCH",
    321: "VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE", 349: "CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN",
    376: "CANNOT_PARSE_UUID", 395: "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO", 407: "DECIMAL_OVERFLOW",
    467: "CANNOT_PARSE_BOOL", 469: "VIOLATED_CONSTRAINT", 675: "CANNOT_PARSE_IPV4",
    676: "CANNOT_PARSE_IPV6", 691: "UNKNOWN_ELEMENT_OF_ENUM",
}  # fmt: skip
# Neither waiting nor leaving out rows helps.
_CLICKHOUSE_STOP: Final = {
    62: "SYNTAX_ERROR", 73: "UNKNOWN_FORMAT", 115: "UNKNOWN_SETTING",
    164: "READONLY", 192: "UNKNOWN_USER", 193: "WRONG_PASSWORD", 194: "REQUIRED_PASSWORD",
    497: "ACCESS_DENIED", 516: "AUTHENTICATION_FAILED",
}  # fmt: skip
_CLICKHOUSE: Final[dict[int, Kind]] = {
    **dict.fromkeys(_CLICKHOUSE_LATER, "later"),
    **dict.fromkeys(_CLICKHOUSE_SCHEMA, "schema"),
    **dict.fromkeys(_CLICKHOUSE_STOP, "stop"),
}

_VIEW: Final = (
    ". The table has these rows and is not sent them again, so the view's table lacks them: correct the "
    "view, and fill its table from this one. With "
    "ClickHouseWriter(settings={'materialized_views_ignore_errors': 1}) the worker goes on, and the view's "
    "table lacks what its view refuses"
)


def of_clickhouse(error: Exception) -> Answer:
    """Return the meaning of an error of a ClickHouse client, or of the network below it."""
    text = str(error)
    found = _CODE.search(text)
    code = getattr(error, "code", None) or (int(found[1]) if found else None)
    message = found[2] if found else _network_reason(error) or text or type(error).__name__
    kind = _clickhouse_kind(error, code, text)
    if code == 252 and "partitions for single INSERT block" in text:
        # The same code as too many parts, but waiting does not help: smaller blocks do.
        kind = "rows"
    reason = one_line(_NOISE.sub("", message))
    if kind == "rows" and "while pushing to view" in text:
        # The table already has the rows; other tokens would double them.
        kind = "stop"
        reason += _VIEW
    begun = (
        "view" in text or code not in _NOT_BEGUN if code is not None else not _unreachable(error)
    )
    return Answer(
        kind,
        reason,
        about_values=code in _CLICKHOUSE_VALUES,
        after=5.0 if code == 252 and kind == "later" else None,
        not_begun=not begun,
        message=message,
        may_be_of_rows=kind == "later" and code in _CLICKHOUSE_OF_ROWS and "view" not in text,
    )


def _clickhouse_kind(error: Exception, code: int | None, text: str) -> Kind:
    from clickhouse_connect.driver.exceptions import OperationalError, ProgrammingError

    if code is not None:
        return _CLICKHOUSE.get(code, "rows")
    if isinstance(error, OSError):  # of the network, or a timeout
        return "later"
    if isinstance(error, ProgrammingError):  # the client refuses an unknown setting
        return "stop"
    status = _HTTP_STATUS.search(text)
    if status is not None:  # of a proxy in between
        return "later" if status[1][0] == "5" or status[1] in ("408", "429") else "stop"
    return "later" if isinstance(error, OperationalError) else "unknown"


def _unreachable(error: BaseException) -> bool:
    """Return whether the client could not connect."""
    from aiohttp import ClientConnectorError

    refused: Any = (ClientConnectorError, ConnectionRefusedError)
    return any(isinstance(cause, refused) for cause in _causes(error))


def _network_reason(error: BaseException) -> str | None:
    """Return the operating system's message from under the exceptions of the client's layers."""
    reason = None
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.errno is not None:
            reason = os.strerror(cause.errno) if cause.errno > 0 else cause.strerror
        elif isinstance(cause, TimeoutError):
            reason = "no answer in time"
    return reason
