"""`kmr peek` and `kmr.read`: real records, and what a map makes of them."""

from __future__ import annotations

import asyncio
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import msgspec
import pytest
from anyio import to_thread

import kmr
from kmr.cli.root import GROUP, run_command
from kmr.kafka.admin import connect_admin

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kmr.broker import Broker
    from tests.framework.conftest import CreateTopic, Produce

FLOW = """
import msgspec
from kmr import Json, Strategy
from kmr.sinks import ClickHouseWriter

class Order(msgspec.Struct):
    customer: str
    amount: float

def large(order: Order) -> Order | None:
    if order.customer == "eve":
        raise ValueError("no customer")
    return order if order.amount >= 10 else None

strategy = Strategy(value=Json(Order), map=large, reduce=ClickHouseWriter("t", url="http://127.0.0.1:1"))
"""
COMMAND = EntryPoint("peek", "kmr.cli.peek:peek", GROUP)
ORDERS = [
    b'{"customer": "ada", "amount": 25.0}',
    b'{"customer": "bob", "amount": 7.5}',
    b'{"customer": "eve", "amount": 12.5}',
    b'{"customer": "ada", "amount": "a lot"}',
    b'{"customer": "cyd", "amount": 99}',
]


class Order(msgspec.Struct):
    customer: str
    amount: float


async def peek(broker: Broker, *arguments: str) -> int:
    command: Sequence[str] = (
        "peek", *arguments, "--bootstrap-servers", broker.bootstrap_servers,
    )  # fmt: skip
    return await to_thread.run_sync(run_command, command, [COMMAND])


async def test_a_strategy_is_shown_on_real_records_and_nothing_is_committed(
    broker: Broker,
    produce: Produce,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "peeked.py").write_text(FLOW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    await produce("orders", ORDERS)
    capsys.readouterr()
    assert await peek(broker, "peeked", "--topic", "orders") == 1
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["partition", "offset", "customer", "amount"]
    assert lines[1:3] == [["0", "0", "ada", "25.0"], ["0", "4", "cyd", "99.0"]]
    assert "failed 0:2: ValueError: no customer" in out
    assert "failed 0:3: field amount: expected float, got str" in out
    assert "5 records: 2 rows, 1 filtered, 2 failed; " in out
    async with connect_admin({"bootstrap_servers": broker.bootstrap_servers}) as admin:
        assert await admin.list_group_offsets("peek") == {}


async def test_a_topic_is_shown_decoded_and_can_be_asked_about_by_sql(
    broker: Broker, produce: Produce, capsys: pytest.CaptureFixture[str]
) -> None:
    await produce("orders", [*ORDERS[:3], b"no json \xff"])
    assert await peek(broker, "orders", "--last", "2") == 0
    out = capsys.readouterr().out
    assert "eve" in out
    assert "no json \\xff" in out
    assert "ada" not in out
    sql = "SELECT customer, sum(amount) AS total FROM t GROUP BY customer ORDER BY customer"
    assert await peek(broker, "orders", "--from", "0", "--sql", sql) == 0
    out = capsys.readouterr().out
    assert "total" in out
    assert "12.5" in out
    assert await peek(broker, "orders", "--sql", "SELECT nothing FROM t") == 1
    message = capsys.readouterr().err
    assert message.startswith("kmr: --sql: ")
    assert "; the rows are the table t, of the columns partition, offset, " in message


async def test_keys_are_shown_and_columns_of_nulls_can_be_asked_about(
    broker: Broker, produce: Produce, capsys: pytest.CaptureFixture[str]
) -> None:
    await produce("orders", [b'{"a": null, "b": [], "c": {"d": null}}', None], key=b"k1")
    assert await peek(broker, "orders", "--sql", "SELECT key, offset, a, b, c, value FROM t") == 0
    assert capsys.readouterr().out.count("k1") == 2


async def test_records_of_a_topic_are_shown_whatever_types_their_fields_have(
    broker: Broker, produce: Produce, capsys: pytest.CaptureFixture[str]
) -> None:
    values = [b'{"amount": 25.0, "key": 1}', b'{"amount": "a lot"}', b'{"amount": [1]}', b"[7]"]
    await produce("orders", values, key=b"k1")
    capsys.readouterr()
    assert await peek(broker, "orders") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["partition", "offset", "key", "amount", "value.key", "value"]
    assert [line[3:] for line in lines[1:5]] == [
        ["25.0", "1", "None"],
        ["a", "lot", "None", "None"],
        ["[1]", "None", "None"],
        ["None", "None", "[7]"],
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["hits:strategy"],
            "hits:strategy is a strategy: name the topic that it maps with --topic",
        ),
        (["hits", "--last", "0"], "--last must be at least 1, not 0"),
        (["hits", "--follow", "--sql", "SELECT 1"], "--sql needs an end: leave out --follow"),
    ],
)
def test_what_peek_cannot_do_is_said_before_it_connects(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["peek", *arguments], [COMMAND]) == 2
    assert " ".join(capsys.readouterr().err.split()) == f"kmr: {message}"


async def test_a_topic_is_read_as_a_table(
    broker: Broker, produce: Produce, create_topic: CreateTopic
) -> None:
    await create_topic("orders", 2)
    await produce("orders", ORDERS[:2], 0, timestamp=1_000)
    await produce("orders", ORDERS[2:], 1, timestamp=2_000)

    def read(**arguments: object) -> list[dict[str, object]]:
        where = {"bootstrap_servers": broker.bootstrap_servers}
        table = kmr.read("orders", **where | arguments)  # type: ignore[arg-type]
        rows: list[dict[str, object]] = table.to_pylist()
        return sorted(rows, key=lambda row: (row["partition"], row["offset"]))

    raw = await asyncio.to_thread(read)
    assert [row["value"] for row in raw] == ORDERS
    typed = await asyncio.to_thread(lambda: read(value=kmr.Json(Order)))
    assert [row["customer"] for row in typed] == ["ada", "bob", "eve", "cyd"]
    assert "kmr_offset" not in typed[0]
    newest = await asyncio.to_thread(lambda: read(last=3))
    assert [(row["partition"], row["offset"]) for row in newest] == [(1, 0), (1, 1), (1, 2)]
    late = await asyncio.to_thread(lambda: read(since=1_500))
    assert [row["partition"] for row in late] == [1, 1, 1]
    await create_topic("empty", 1)
    empty = await asyncio.to_thread(
        lambda: kmr.read("empty", value=kmr.Json(Order), bootstrap_servers=broker.bootstrap_servers)
    )
    assert len(empty) == 0
    assert empty.column_names[:2] == ["customer", "amount"]
