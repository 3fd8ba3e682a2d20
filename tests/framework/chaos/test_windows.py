"""What a storm says about the rows of windows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import clickhouse_connect
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kmr import Json, Strategy, Window
from kmr.chaos.delivered import LETTER, delivered_by
from kmr.chaos.records import map_all
from kmr.chaos.storm import Storm, carry_out
from kmr.chaos.windows import errors_of, sink_of, wrong_windows
from kmr.columns.texts import json_rows
from kmr.delivery.failures import FAILED_SCHEMA
from kmr.delivery.row_letters import row_letters
from kmr.errors import StrategyError
from kmr.memory.window_model import OFFSETS, with_offsets
from kmr.record import Range, Rows, TopicPartition
from kmr.sinks import ClickHouseWriter, ParquetWriter, StreamWriter
from kmr.testing import batch_of, run_strategy
from tests.framework.chaos.strategies import Order

if TYPE_CHECKING:
    from pathlib import Path

P0 = TopicPartition("t", 0)
RANGE = Range("t", 0, 0, 5, 0)
VALUES: list[bytes | None] = [
    b'{"customer":"%s","amount":%d}' % (name, n) for n, name in enumerate([b"a", b"b"] * 3)
]


def strategy(sink: Any, **options: Any) -> Strategy:
    given: dict[str, Any] = {"late": "dead-letter", "idle": "3s", "lateness": "1s"} | options
    columns = {"n": ("*", "count")}
    window = Window("2s", time="timestamp", by=["customer"], columns=columns, keyed=True, **given)
    return Strategy(value=Json(Order), reduce=[window, sink], reduce_err=StreamWriter("stderr"))


def rows_of(made: Strategy) -> list[dict[str, Any]]:
    return run_strategy(made, VALUES, topic="t").rows


@pytest.fixture
def made(tmp_path: Path) -> Strategy:
    return with_offsets(strategy(ParquetWriter(str(tmp_path / "out"))), keyed=False)


def wrong(made: Strategy, rows: list[dict[str, Any]], *errors: int) -> set[str]:
    assert made.window is not None
    batch = batch_of("t", 0, 0, VALUES)
    letters = Counter({(P0, offset): 1 for offset in errors})
    return set(wrong_windows(made.window, map_all(made, [batch]), rows, letters, once=True))


def letter_of(row: dict[str, Any], name: str) -> dict[str, Any]:
    """The row as a letter has it."""
    values = json_rows(pa.Table.from_pylist([row])).objects
    decoded: dict[str, Any] = msgspec.json.decode(values[0])
    return decoded | {LETTER: name}


def test_windows_with_their_records_are_right(made: Strategy) -> None:
    assert [row[OFFSETS] for row in rows_of(made)] == [[0, 2, 4], [1, 3, 5]]
    assert wrong(made, rows_of(made)) == set()


def test_a_window_that_the_wall_clock_closed_early_is_right(made: Strategy) -> None:
    first, second = rows_of(made)
    assert wrong(made, [first | {OFFSETS: [0, 2]}, second], 4) == set()


def test_each_wrong_window_is_found(made: Strategy) -> None:
    first, second = rows_of(made)
    assert wrong(made, [first, first, second]) == {"a window's row is there twice"}
    foreign = {"a window has other records than its own"}
    assert wrong(made, [first | {OFFSETS: [0, 4]}, second]) == foreign
    assert wrong(made, [first | {"customer": "z"}, second]) == foreign
    assert wrong(made, [first, second], 2) == {"a record is in a window and in reduce_err"}


def test_a_row_is_in_the_sink_or_has_a_letter_and_copies_of_the_letter(made: Strategy) -> None:
    first, second = rows_of(made)
    letter = letter_of(second, "one")
    assert wrong(made, [first, letter, letter]) == set()
    assert wrong(made, [first, second, letter]) == {"a window's row is there, and has a letter"}
    assert wrong(made, [first, letter, letter_of(second, "two")]) == {
        "a window's row has letters that are no copies"
    }
    foreign = letter | {OFFSETS: [1, 2]}
    assert wrong(made, [first, foreign]) == {"a window has other records than its own"}


@pytest.mark.parametrize("kind", ["clickhouse", "parquet"])
def test_letters_in_a_table_are_told_apart(
    kind: str, made: Strategy, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    table = pa.Table.from_pylist(rows_of(made))
    letters = row_letters(Rows(table, (RANGE,)), "no", "reduce-2", 1, None, (RANGE,)).table
    late = letters.slice(0, 1).to_pylist()[0] | {"offset": 9, "headers": None}
    failed = pa.concat_tables([letters, pa.Table.from_pylist([late], letters.schema)])
    if kind == "parquet":
        (tmp_path / "dead").mkdir()
        pq.write_table(failed, tmp_path / "dead" / "a.parquet")
        errors: Any = ParquetWriter(tmp_path / "dead")
    else:
        url = request.getfixturevalue("clickhouse_url")
        errors = ClickHouseWriter("letters_of_rows", url=url, create=True)
        with clickhouse_connect.get_client(dsn=url) as client:
            client.command(errors.create_statement(FAILED_SCHEMA))
            client.insert_arrow("letters_of_rows", failed)
    delivered = errors_of(replace(made, reduce_err=errors), [P0])
    assert delivered is not None
    assert delivered._count() == {(P0, 9): 1}
    assert [row[OFFSETS] for row in delivered.rows] == [row[OFFSETS] for row in rows_of(made)]
    assert wrong(made, delivered.rows, 9) == set()


def test_letters_that_cannot_be_told_apart_are_refused(made: Strategy) -> None:
    with pytest.raises(StrategyError, match="let it be a DeadLetterWriter"):
        errors_of(made, [P0])


def test_the_records_in_the_windows_of_files_are_counted(made: Strategy, tmp_path: Path) -> None:
    sink = sink_of(made, made.reducers[-1], [P0])
    assert sink is not None
    assert not sink._count()
    (tmp_path / "out").mkdir()
    pq.write_table(pa.Table.from_pylist(rows_of(made)), tmp_path / "out" / "a.parquet")
    assert sink._count() == Counter({(P0, offset): 1 for offset in range(6)})
    assert sink.rows == rows_of(made)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"late": "drop"}, "with late='dead-letter'"),
        ({"every": "1s"}, "do not overlap"),
        ({"idle": None}, "set idle="),
    ],
)
def test_windows_of_which_a_storm_could_not_count_the_records_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    sink = ParquetWriter(str(tmp_path / "out"))
    with pytest.raises(StrategyError, match=message):
        carry_out(Storm("m:s", {"t": VALUES}), strategy(sink, **changes), tmp_path, print)


def test_rows_of_windows_in_a_topic_are_not_counted() -> None:
    from kmr.sinks import KafkaWriter

    with pytest.raises(StrategyError, match="counted in ClickHouse and in Parquet files"):
        sink_of(strategy(KafkaWriter("out")), KafkaWriter("out"), [P0])
    assert delivered_by(KafkaWriter("out"), [P0]) is not None
