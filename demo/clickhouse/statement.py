"""What a SQL text asks for, as far as an HTTP server must know before the engine parses it.

A server has to know four things: does the statement read or write, in which format does it answer, does
it bring its own data along (`INSERT ... FORMAT Native <bytes>`), and where do these data begin. A
tokenizer answers that; everything else is left to ClickHouse's own parser.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from demo.clickhouse.errors import ClickHouseError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Statement", "parse"]

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
        kind: `read` changes nothing; `insert` is an INSERT whose data are part of the text; `write` is
            everything else.
        answers: whether it has a result set, even an empty one.
        format: what its FORMAT clause says; for an `insert` the format of the data.
        target: of an `insert`, the text up to its SETTINGS, FORMAT or VALUES clause.
        settings: of an `insert`, its SETTINGS clause.
        data_at: of an `insert`, where in the text the data begin.
    """

    kind: Kind
    answers: bool = False
    format: str | None = None
    target: bytes = b""
    settings: bytes = b""
    data_at: int = 0


@dataclass(frozen=True, slots=True)
class _Token:
    """A token outside of all brackets. `word` is its text in capitals, empty unless it is a word."""

    text: bytes
    word: bytes
    start: int
    end: int


def _outer_tokens(text: bytes) -> Iterator[_Token]:
    """Every token that is not inside brackets, and the opening brackets; no space, no comments."""
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


def parse(text: bytes) -> Statement:
    """What kind of statement `text` is.

    Of an INSERT with data only the head is looked at, so `text` may end anywhere in the data.

    Raises:
        ClickHouseError: more than one statement, or a clause that would read or write files on the
            server's machine (FROM INFILE, INTO OUTFILE), as a ClickHouse server refuses them too.
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
    ended = False
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
        previous = token
    kind: Kind = "read" if reads or first.word in _SESSION_ONLY else "write"
    return Statement(kind, answers=reads, format=answer_format)


def _insert(text: bytes, tokens: Iterator[_Token]) -> Statement:
    """An INSERT: `INTO [TABLE | FUNCTION] name [(columns)] [SETTINGS ...] source`."""
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
            return Statement("write")  # the engine says what is wrong
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
    """Data begin after the format's name, spaces and at most one line break: they are binary."""
    while text[at : at + 1] in (b" ", b"\t", b"\f"):
        at += 1
    if text[at : at + 1] == b";":
        raise ClickHouseError(
            62, "SYNTAX_ERROR", "You have excessive ';' symbol before data for INSERT."
        )
    if text[at : at + 1] == b"\r":
        at += 1
    return at + 1 if text[at : at + 1] == b"\n" else at
