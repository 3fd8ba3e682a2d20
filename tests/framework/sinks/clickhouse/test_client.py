"""Classifying errors of ClickHouse, of its clients and of the network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError, ProgrammingError

from kmr.errors import SinkError
from kmr.sinks.answers import of_clickhouse
from kmr.sinks.clickhouse import client

if TYPE_CHECKING:
    from pathlib import Path


def server_error(code: int, message: str) -> DatabaseError:
    """An error as clickhouse-connect raises it."""
    return DatabaseError(
        f"Received ClickHouse exception, code: {code}, server response: Code: {code}. DB::Exception: "
        f"{message} (version 25.8.1.1 (official build)) (for url http://host:8123)",
        code=code,
    )


@pytest.mark.parametrize(
    ("code", "kind"),
    [(252, "later"), (241, "later"), (745, "later"), (60, "schema"), (16, "schema"), (53, "schema"),
     (27, "rows"), (469, "rows"), (376, "rows"), (516, "stop"), (115, "stop"), (49, "rows"), (130, "rows")],
)  # fmt: skip
def test_the_code_decides(code: int, kind: str) -> None:
    assert of_clickhouse(server_error(code, "something")).kind == kind


def test_the_code_is_read_from_the_message_of_the_embedded_engine() -> None:
    trouble = of_clickhouse(DatabaseError("Code: 241. DB::Exception: Memory limit exceeded. (X)"))
    assert (trouble.kind, trouble.reason) == ("later", "Memory limit exceeded. (X)")


def test_the_reason_is_one_line_without_address_and_version() -> None:
    trouble = of_clickhouse(
        server_error(27, "Cannot parse input:\n  expected digits: (at row 3)\n")
    )
    assert trouble.reason == "Cannot parse input: expected digits: (at row 3)"
    assert len(of_clickhouse(server_error(27, "x" * 10_000)).reason) <= 300


def test_too_many_parts_waits_but_too_many_partitions_in_a_block_are_divided() -> None:
    parts = of_clickhouse(server_error(252, "Too many parts (300). Merges are slower than inserts"))
    assert (parts.kind, parts.after) == ("later", 5.0)
    block = of_clickhouse(
        server_error(252, "Too many partitions for single INSERT block (more than 100)")
    )
    assert block.kind == "rows"


def test_an_error_of_a_view_is_never_searched_for_poison() -> None:
    message = "Value passed to 'throwIf': while pushing to view default.mv"
    assert of_clickhouse(server_error(395, message)).kind == "stop"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "later"),
        (TimeoutError(), "later"),
        (OperationalError("Network Error: server disconnected"), "later"),
        (OperationalError("HTTP driver received HTTP status 503"), "later"),
        (
            DatabaseError("HTTP driver received HTTP status 502, server response: bad gateway"),
            "later",
        ),
        (DatabaseError("HTTP driver received HTTP status 404"), "stop"),
        (ProgrammingError("Setting x is unknown or readonly"), "stop"),
        (ValueError("a bug"), "unknown"),
    ],
)
def test_without_a_code_the_type_of_the_error_decides(error: Exception, kind: str) -> None:
    assert of_clickhouse(error).kind == kind


def test_only_a_server_that_never_got_the_request_has_refused_it() -> None:
    unreachable = OperationalError("Network Error")
    unreachable.__cause__ = ConnectionRefusedError(111, "Connection refused")
    lost = OperationalError("Network Error")
    lost.__cause__ = ConnectionResetError(104, "Connection reset by peer")
    view = "Code: 242. DB::Exception: Table is read only: while pushing to view v"
    assert of_clickhouse(unreachable).not_begun
    assert not of_clickhouse(lost).not_begun
    assert of_clickhouse(Exception("Code: 202. DB::Exception: too many queries")).not_begun
    assert not of_clickhouse(Exception(view)).not_begun


def test_the_reason_of_a_network_error_is_that_of_the_operating_system() -> None:
    wrapped = OperationalError("Network Error: Cannot connect to host 127.0.0.1:1 ...")
    wrapped.__cause__ = ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)")
    assert of_clickhouse(wrapped).reason == "Connection refused"
    assert of_clickhouse(TimeoutError()).reason == "no answer in time"


async def test_a_directory_that_another_process_serves_is_reached_by_its_url(
    tmp_path: Path, clickhouse_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def serve(path: Path) -> str:
        asked.append(path)
        return clickhouse_url

    monkeypatch.setattr(client, "_serve", None)
    client.serve_elsewhere(serve)
    connection = await client.connect_async(
        client.ClickHouseAddress.of(f"chdb:{tmp_path}?max_threads=1"),
        settings={},
        connect_timeout=60,
        timeout=60,
        options={},
    )
    assert asked == [tmp_path]
    rows = await connection.rows("SELECT getSetting('max_threads') AS threads", {})
    assert rows == [{"threads": 1}]
    await connection.close()


async def test_a_server_that_does_not_understand_the_question_for_a_privilege_is_no_error(
    clickhouse_url: str,
) -> None:
    """As one that is older than CHECK GRANT."""
    target = client.ClickHouseAddress.of(f"{clickhouse_url}?readonly=2")
    connection = await client.connect_async(
        target, settings={}, connect_timeout=60, timeout=60, options={}
    )
    try:
        assert await connection.is_granted("SELECT", "`default`.`absent`") is True
        assert await connection.is_granted("INSERT", "`default`.`absent`") is False
        assert await connection.is_granted("NOTHING", "`default`.`absent`") is None
    finally:
        await connection.close()


def test_a_directory_that_cannot_be_made_is_named_without_the_stack_of_clickhouse(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    target = client.ClickHouseAddress.of(f"chdb:{tmp_path}/file/data")
    with (
        pytest.raises(SinkError, match=r"file/data of the .* cannot be made: Not a directory; run"),
        client.connect(target, create=True),
    ):
        pass
