"""A query, its statement and its answer, between the HTTP server and the engine."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Self

from ..errors import KmrError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_CODE = re.compile(r"Code: (\d+)\. DB::Exception: ")
_NAME = re.compile(r"\(([A-Z][A-Z0-9_]+)\)")


class ServerError(KmrError):
    """The embedded ClickHouse cannot be started; the message says why and what to do."""


class ClickHouseError(KmrError):
    """A query failed: ClickHouse's message, its error code and the code's symbolic name."""

    def __init__(self, code: int, name: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.name = name

    @classmethod
    def of_engine(cls, message: str) -> Self:
        """Parse the text of an exception of the engine, which may nest several."""
        code = _CODE.search(message)
        if code is None:
            return cls(1002, "UNKNOWN_EXCEPTION", message)
        names = _NAME.findall(message)
        return cls(int(code[1]), names[-1] if names else "", message[code.end() :].strip())

    def body(self, version: str) -> str:
        """Format the error as a ClickHouse server does."""
        message = str(self)
        if self.name and f"({self.name})" not in message:
            message = f"{message} ({self.name})"
        if "(version " not in message:
            message = f"{message} (version {version})"
        return f"Code: {self.code}. DB::Exception: {message}\n"


Kind = Literal["read", "write", "insert"]

_TOKEN = re.compile(
    rb"""(?P<skip>\s+|--[^\n]*|\#[ !][^\n]*|/\*.*?\*/)
    |(?P<quoted>'(?:\\.|''|[^'\\])*'|`(?:\\.|``|[^`\\])*`|"(?:\\.|""|[^"\\])*"
        |\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
    |(?P<word>[A-Za-z_][A-Za-z0-9_$]*)
    |(?P<number>[0-9][A-Za-z0-9_.]*)
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)

_READS = frozenset(
    (b"SELECT", b"WITH", b"FROM", b"SHOW", b"DESC", b"DESCRIBE", b"EXISTS", b"EXPLAIN", b"CHECK")
)
_SESSION_ONLY = frozenset((b"SET", b"USE"))
_SOURCES = frozenset((b"FORMAT", b"VALUES", b"SELECT", b"WITH", b"FROM", b"WATCH"))


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement.

    Attributes:
        kind: `read` changes nothing; `insert` is an INSERT with data in the text; `write` is any other.
        answers: whether it has a result set, even an empty one.
        format: of its FORMAT clause; for an `insert` the format of the data.
        target: of an `insert`, the text up to its SETTINGS, FORMAT or VALUES clause.
        settings: of an `insert`, its SETTINGS clause.
        data_at: of an `insert`, the position of the data in the text.
    """

    kind: Kind
    answers: bool = False
    format: str | None = None
    target: bytes = b""
    settings: bytes = b""
    data_at: int = 0


@dataclass(frozen=True, slots=True)
class _Token:
    """A token outside of all brackets. `word`: its text in capitals, empty unless it is a word."""

    text: bytes
    word: bytes
    start: int
    end: int


def _outer_tokens(text: bytes) -> Iterator[_Token]:
    """Yield the tokens outside of brackets, and opening brackets; no spaces, no comments."""
    depth = 0
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        token = match.group()
        if kind == "sign" and token in b")]}":
            depth -= 1
            continue
        if depth == 0 and kind != "skip":
            word = token.upper() if kind == "word" else b""
            yield _Token(token, word, match.start(), match.end())
        if kind == "sign" and token in b"([{":
            depth += 1


def parse_statement(text: bytes) -> Statement:
    """Parse as much of a statement as the server must know.

    Only the head of an INSERT is parsed, so `text` may end anywhere in its data.

    Raises:
        ClickHouseError: more than one statement, or a clause that reads or writes files on the server's
            machine (FROM INFILE, INTO OUTFILE); a ClickHouse server refuses them too.
    """
    tokens = _outer_tokens(text)
    first = next(tokens, None)
    if first is None:
        raise ClickHouseError(62, "SYNTAX_ERROR", "Syntax error: the query is empty")
    if first.word == b"INSERT":
        return _insert(text, tokens)
    reads = first.word in _READS or first.text == b"("
    answer_format: str | None = None
    previous = first
    ended = asks_grant = False
    for token in tokens:
        if ended and token.text != b";":
            raise ClickHouseError(
                62, "SYNTAX_ERROR", "Syntax error (Multi-statements are not allowed)"
            )
        ended = token.text == b";"
        if previous.word == b"FORMAT" and token.word:
            answer_format = token.text.decode()
        elif previous.word == b"INTO" and token.word == b"OUTFILE":
            raise ClickHouseError(358, "INTO_OUTFILE_NOT_ALLOWED", "INTO OUTFILE is not allowed")
        elif token.word == b"INSERT" and previous.word != b"EXPLAIN":
            reads = False  # WITH ... INSERT
        elif (first.word, token.word, previous) == (b"CHECK", b"GRANT", first):
            asks_grant = True
        previous = token
    if asks_grant:
        return Statement("read")  # it takes no FORMAT
    kind: Kind = "read" if reads or first.word in _SESSION_ONLY else "write"
    return Statement(kind, answers=reads, format=answer_format)


def _insert(text: bytes, tokens: Iterator[_Token]) -> Statement:
    """Parse an INSERT: `INTO [TABLE | FUNCTION] name [(columns)] [SETTINGS ...] source`."""
    settings_at: int | None = None
    in_name = True
    previous = b"INTO"
    for token in tokens:
        if in_name:
            # The table may be called `values` or `format`: skip its name, which is words and dots.
            in_name = previous in (b"INTO", b"TABLE", b"FUNCTION", b".") or token.text == b"."
            previous = token.word or token.text
        if in_name:
            continue
        if token.word == b"SETTINGS":
            settings_at = token.start
        elif token.word in _SOURCES:
            return _insert_from(text, token, tokens, settings_at)
    return Statement("write")


def _insert_from(
    text: bytes, source: _Token, tokens: Iterator[_Token], settings_at: int | None
) -> Statement:
    if source.word == b"FROM":
        raise ClickHouseError(
            77, "UNKNOWN_TYPE_OF_QUERY", "FROM INFILE is for clients: send the data in the body"
        )
    data_format = "Values"
    data_at = source.end
    if source.word == b"FORMAT":
        name = next(tokens, None)
        if name is None or not name.word:
            return Statement("write")  # the engine reports the error
        data_format = name.text.decode()
        data_at = _after_line(text, name.end)
    elif source.word != b"VALUES":
        return Statement("write")
    head_end = source.start if settings_at is None else settings_at
    return Statement(
        "insert",
        format=data_format,
        target=text[:head_end],
        settings=text[head_end : source.start],
        data_at=data_at,
    )


def _after_line(text: bytes, at: int) -> int:
    """Return where data begin: after the format's name, spaces and at most one line break."""
    while text[at : at + 1] in (b" ", b"\t", b"\f"):
        at += 1
    if text[at : at + 1] == b";":
        raise ClickHouseError(
            62, "SYNTAX_ERROR", "You have excessive ';' symbol before data for INSERT."
        )
    if text[at : at + 1] == b"\r":
        at += 1
    return at + 1 if text[at : at + 1] == b"\n" else at


class Spool:
    """A file in memory that the engine reads by path; freed when closed."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.memfd_create("clickhouse-insert"), "wb", buffering=0)
        self.path = f"/proc/self/fd/{self._file.fileno()}"

    def write(self, data: bytes | memoryview) -> None:
        """Append; a write to memory is never partial."""
        self._file.write(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class ExternalTable:
    """A temporary table that comes with a query; `structure`: `name Type, ...`."""

    name: str
    structure: str
    format: str
    data: Spool


@dataclass(frozen=True, slots=True)
class Query:
    """One statement with its data and parameters.

    Attributes:
        text: the SQL; of an INSERT with data only its head.
        data: the rows of an INSERT, compressed with `encoding`.
        tag: identifies the query for `ChdbEngine.kill`.
        session: keeps temporary tables and settings between queries.
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

    def sql(self) -> bytes:
        """Return the SQL for the engine."""
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
class StatementResult:
    """The result of a statement, and what it did; `format` is None without a result set."""

    body: bytes
    format: str | None
    summary: dict[str, str]
