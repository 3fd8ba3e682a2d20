"""The part of a statement that the server parses itself."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.embedded.query import ClickHouseError, parse_statement


@pytest.mark.parametrize(
    ("text", "kind", "answers", "answer_format"),
    [
        ("SELECT 1", "read", True, None),
        ("-- FORMAT x\n select 1 format JSON;", "read", True, "JSON"),
        ("/* INSERT */ (SELECT 1 FORMAT CSV)", "read", True, None),
        ("SELECT 'INSERT; FORMAT x' AS `FORMAT y`", "read", True, None),
        ("WITH x AS (SELECT 1) SELECT * FROM x", "read", True, None),
        ("WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x", "write", False, None),
        ("SHOW TABLES FORMAT TSV", "read", True, "TSV"),
        ("SET max_threads = 1", "read", False, None),
        ("CHECK TABLE t", "read", True, None),
        ("CHECK GRANT INSERT, SELECT(a) ON t", "read", False, None),
        ("CREATE TABLE t (a UInt8) ENGINE = Memory", "write", False, None),
        ("DROP TABLE t", "write", False, None),
        ("INSERT INTO t SELECT 1", "write", False, None),
        ("INSERT INTO t WITH x AS (SELECT 1) SELECT * FROM x", "write", False, None),
        ("INSERT INTO FUNCTION null('a UInt8') SELECT 1", "write", False, None),
    ],
)
def test_statements_read_or_write(
    text: str, kind: str, *, answers: bool, answer_format: str | None
) -> None:
    statement = parse_statement(text.encode())
    assert (statement.kind, statement.answers, statement.format) == (kind, answers, answer_format)


@pytest.mark.parametrize(
    ("text", "target", "data_format", "settings", "data"),
    [
        ("INSERT INTO t FORMAT TSV\n1\t2", "INSERT INTO t ", "TSV", "", "1\t2"),
        ("insert into t (`FORMAT`) format Native \r\n;x", "insert into t (`FORMAT`) ", "Native", "", ";x"),
        ("INSERT INTO `a b`.values VALUES (1)", "INSERT INTO `a b`.values ", "Values", "", " (1)"),
        ("INSERT t FORMAT CSV 1", "INSERT t ", "CSV", "", "1"),
        (
            "INSERT INTO t SETTINGS a = 1, b = 'FORMAT x' FORMAT CSV\n\n",
            "INSERT INTO t ",
            "CSV",
            "SETTINGS a = 1, b = 'FORMAT x' ",
            "\n",
        ),
    ],
)  # fmt: skip
def test_the_data_of_an_insert_are_found(
    text: str, target: str, data_format: str, settings: str, data: str
) -> None:
    statement = parse_statement(text.encode())
    assert statement.kind == "insert"
    assert statement.format == data_format
    assert statement.target.decode() == target
    assert statement.settings.decode() == settings
    assert text[statement.data_at :] == data


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "SYNTAX_ERROR"),
        (" -- nothing", "SYNTAX_ERROR"),
        ("SELECT 1; SELECT 2", "SYNTAX_ERROR"),
        ("SELECT 1 INTO OUTFILE 'x'", "INTO_OUTFILE_NOT_ALLOWED"),
        ("INSERT INTO t FROM INFILE 'x' FORMAT TSV", "UNKNOWN_TYPE_OF_QUERY"),
        ("INSERT INTO t FORMAT TSV;\n1", "SYNTAX_ERROR"),
    ],
)
def test_statements_that_a_server_refuses_are_refused(text: str, name: str) -> None:
    with pytest.raises(ClickHouseError) as raised:
        parse_statement(text.encode())
    assert raised.value.name == name


@given(st.binary(max_size=200))
def test_data_of_any_bytes_are_left_alone(data: bytes) -> None:
    statement = parse_statement(b"INSERT INTO t (a) FORMAT RowBinary\n" + data)
    assert (b"INSERT INTO t (a) FORMAT RowBinary\n" + data)[statement.data_at :] == data


@given(st.binary(max_size=200))
def test_any_bytes_are_a_statement_or_refused(text: bytes) -> None:
    with suppress(ClickHouseError):
        assert parse_statement(text).data_at <= len(text)
