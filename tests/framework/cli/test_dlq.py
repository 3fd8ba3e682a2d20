"""kmr dlq, against the broker of this process; replays are in guarantees/test_dead_letters.py."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from aiokafka import AIOKafkaProducer
from anyio import to_thread

from kmr.dead_letters.letters import letter_headers
from kmr.delivery.failures import FAILED_SCHEMA
from kmr.delivery.row_letters import row_letters
from kmr.record import Range, Rows

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from kmr.broker import Broker

    Dlq = Callable[..., Awaitable[Any]]

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def dlq(kmr: Callable[..., Any], broker: Broker) -> Dlq:
    """Runs `kmr dlq` in a thread, because the broker is on this event loop."""

    async def run(command: str, *flags: str) -> Any:
        where = ("--bootstrap-servers", broker.bootstrap_servers)
        return await to_thread.run_sync(partial(kmr, "dlq", command, "dead", *flags, *where))

    return run


@pytest.fixture
async def letters(broker: Broker) -> None:
    """Five letters of three records in partition 0 and two in partition 1 of a topic `orders`."""
    await broker.topics.create("dead", 2)
    failed = [
        {
            "key": b"k",
            "value": b'{"order": %d}' % offset,
            "topic": "orders",
            "partition": partition,
            "offset": offset,
            "timestamp": WHEN,
            "timestampType": 0,
            "headers": [{"key": "trace", "value": b"\xff"}],
            "reason": "late" if offset % 2 else "no json",
            "stage": "map",
            "attempt": 1,
            "exception": "KeyError" if offset == 2 else None,
            "traceback": "  line 1\nKeyError: 2" if offset == 2 else None,
        }
        for partition, offset in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))
    ]
    headers = letter_headers(pa.Table.from_pylist(failed, schema=FAILED_SCHEMA))
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for row, each in zip(failed, headers, strict=True):
            await producer.send_and_wait(
                "dead", row["value"], row["key"], row["partition"], headers=each
            )


async def reasons(dlq: Dlq, *flags: str) -> dict[str, int]:
    listed = json.loads((await dlq("list", "--json", *flags)).out)
    return {each["reason"]: each["letters"] for each in listed["reasons"]}


@pytest.mark.usefixtures("letters")
async def test_list_counts_open_letters_by_reason(dlq: Dlq) -> None:
    lines = (await dlq("list")).out.splitlines()
    assert lines[0] == "dead: 5 open letters, 0 settled or copies"
    assert [line.split()[0] for line in lines[1:3]] == ["3", "2"]
    assert lines[1].endswith(": no json  [0:0]")
    assert lines[3:] == ["kmr dlq show dead 0:0 prints the oldest of the first line"]


@pytest.mark.usefixtures("letters")
async def test_list_counts_by_other_headers(dlq: Dlq) -> None:
    lines = (await dlq("list", "--by", "exception", "--by", "topic")).out.splitlines()
    assert [line.split("  ")[-2] for line in lines[1:3]] == ["-: orders", "KeyError: orders"]
    listed = json.loads((await dlq("list", "--json", "--by", "exception")).out)["reasons"]
    assert [(each["exception"], each["letters"]) for each in listed] == [("", 4), ("KeyError", 1)]


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (("--reason", "json"), {"no json": 3}),
        (("--partition", "1"), {"no json": 1, "late": 1}),
        (("--offsets", "1..2"), {"no json": 1, "late": 2}),
        (("--offsets", "2"), {"no json": 1}),
        (("--since", "2020-01-01", "--until", "2020-01-02"), {}),
        (("--stage", "reduce-1"), {}),
        (("--from-topic", "orders", "--reason", "late"), {"late": 2}),
    ],
)
async def test_filters_choose_letters(dlq: Dlq, flags: tuple[str, ...], found: Any) -> None:
    assert await reasons(dlq, *flags) == found


@pytest.mark.usefixtures("letters")
async def test_show_prints_the_letter_and_its_record(dlq: Dlq) -> None:
    by_letter = (await dlq("show", "1:1")).out
    assert (await dlq("show", "orders:1:1")).out == by_letter
    for line in ("offset: 1", "reason: late", "header trace: \\xff", 'value: {"order": 1}'):
        assert f"  {line}\n" in by_letter
    assert "  timestamp: 2026-01-01 00:00:00 UTC (1767225600000)\n" in by_letter
    assert "  traceback:   line 1\n    KeyError: 2\n" in (await dlq("show", "0:2")).out
    missing = await dlq("show", "orders:1:7")
    assert missing.code == 1
    assert missing.err == "kmr: dead has no letter for orders-1 offset 7\n"


@pytest.mark.usefixtures("letters")
async def test_show_without_a_place_prints_the_oldest_open_letter_that_fits(dlq: Dlq) -> None:
    assert (await dlq("show", "--reason", "late")).out == (await dlq("show", "orders:0:1")).out
    assert (await dlq("show")).out.startswith("letter 0:0, ")
    none = await dlq("show", "--reason", "early")
    assert none.err == "kmr: dead has no open letter that fits; see kmr dlq list dead\n"
    both = await dlq("show", "0:0", "--reason", "late")
    assert (both.code, both.err) == (
        2,
        "kmr: give a place, or --rows and conditions such as --reason, not both\n",
    )


@pytest.mark.parametrize("place", ["5", "dead", "a:b:1:2", "orders:1", "1:-2", ":1:2"])
async def test_show_explains_a_place_that_is_none(dlq: Dlq, place: str) -> None:
    shown = await dlq("show", place)
    assert (shown.code, shown.out) == (2, "")
    assert shown.err == f"kmr: give the place as 0:15 or orders:0:15, not {place!r}\n"


@pytest.mark.usefixtures("letters")
async def test_dropped_letters_are_settled_and_new_ones_are_open(dlq: Dlq) -> None:
    dry = await dlq("drop", "--reason", "json", "--dry-run")
    assert dry.out == "dry run: 3 letters would be dropped\n  3 in map: no json\n"
    assert (await dlq("drop", "--reason", "json", "--limit", "1")).out == "dead: 1 letter dropped\n"
    assert (await dlq("drop", "--reason", "json")).out == "dead: 2 letters dropped\n"
    assert "nothing to be dropped" in (await dlq("drop", "--reason", "json")).out
    assert await reasons(dlq) == {"late": 2}
    assert await reasons(dlq, "--all") == {"no json": 3, "late": 2}


@pytest.mark.usefixtures("letters")
async def test_a_dry_run_of_a_replay_changes_nothing(dlq: Dlq, folder: Path) -> None:
    dry = await dlq("replay", "--strategy", "flow:bare", "--reason", "late", "--dry-run")
    assert dry.out == "dry run: 2 letters would be replayed\n  2 in map: late\n"
    assert json.loads((await dlq("list", "--json")).out)["passes"] == []


async def test_letters_of_rows_are_shown_and_dropped_and_stay_open_in_a_replay(
    dlq: Dlq, broker: Broker
) -> None:
    await broker.topics.create("dead", 1)
    made_of = (Range("hits", 0, 3, 9),)
    rows = Rows(pa.table({"path": ["/a", "/b"], "hits": [5, 2**40]}), made_of)
    letters = row_letters(rows, "too large", "reduce-2", 1, None, made_of).table
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for value, headers in zip(letters["value"], letter_headers(letters), strict=True):
            for _ in range(2):  # a worker was killed before it had committed
                await producer.send_and_wait("dead", value.as_py(), headers=headers)
    assert (await dlq("list")).out.startswith("dead: 2 open letters, 2 settled or copies")
    shown = (await dlq("show", "0:2")).out
    assert "  made-of: hits-0[3..9]\n" in shown
    assert '  value: {"path":"/b","hits":1099511627776}' in shown
    rows_ = '{"path":"/a","hits":5}\n{"path":"/b","hits":1099511627776}\n'
    assert (await dlq("show", "--rows", "--stage", "reduce-2")).out == rows_
    assert "no open letter that fits" in (await dlq("show", "--rows", "--stage", "map")).err
    assert "give a place, or --rows" in (await dlq("show", "0:2", "--rows")).err
    replayed = (await dlq("replay", "--strategy", "flow:bare")).out
    assert replayed.startswith(
        "2 letters of rows that were made of many records: these are not replayed"
    )
    assert replayed.endswith("no open letter matches: nothing to be replayed\n")
    assert "2 letters dropped" in (await dlq("drop", "--stage", "reduce-2")).out
    assert (await dlq("list")).out.startswith("dead: 0 open letters")


async def test_a_letter_of_a_row_that_has_no_json_is_told(dlq: Dlq, broker: Broker) -> None:
    await broker.topics.create("dead", 1)
    headers = [("kmr.offset", b"1"), ("kmr.topic", b"t"), ("kmr.partition", b"0")]
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for name, value in ((b"x", b""), (b"y", b"[(1, 2)]"), (b"z", b'{"text": "\xc2\x9b"}')):
            of_row = [*headers, ("kmr.row", name)]
            await producer.send_and_wait("dead", value, headers=of_row)
    shown = await dlq("show", "--rows")
    assert shown.code == 1
    assert shown.out == '{"text":"\\u009b"}\n'
    assert "dead: 2 letters of rows have no JSON" in shown.err


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "give either --strategy module:attribute or --to-topic"),
        (("--strategy", "flow", "--to-topic", "a"), "give either --strategy"),
        (("--to-topic", "dead"), "--to-topic dead is the topic of the letters; give another one"),
        (("--to-topic", "a", "--offsets", "x"), "--offsets must be an offset or FIRST..LAST"),
        (("--to-topic", "a", "--since", "soon"), "--since must be a time such as"),
        (("--to-topic", "a", "--rate", "fast"), "--rate must be letters per second"),
        (("--to-topic", "a", "--limit", "0"), "--limit must be at least 1, not 0"),
        (("--resume",), "--resume: every replay of dead has ended"),
    ],
)
async def test_wrong_flags_are_explained(dlq: Dlq, flags: tuple[str, ...], message: str) -> None:
    output = await dlq("replay", *flags)
    assert output.code == 2
    assert message in output.err
