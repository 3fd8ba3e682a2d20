"""What a storm says about the rows of windows."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from kmr import Json, Strategy, Window
from kmr.chaos.delivered import delivered_by
from kmr.chaos.records import map_all
from kmr.chaos.storm import Storm, carry_out
from kmr.chaos.windows import sink_of, wrong_windows
from kmr.errors import StrategyError
from kmr.memory.window_model import OFFSETS, with_offsets
from kmr.record import TopicPartition
from kmr.sinks import ParquetWriter, StreamWriter
from kmr.testing import batch_of, run_strategy
from tests.framework.chaos.strategies import Order

if TYPE_CHECKING:
    from pathlib import Path

P0 = TopicPartition("t", 0)
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
    return set(wrong_windows(made.window, map_all(made, [batch]), rows, letters))


def test_windows_with_their_records_are_right(made: Strategy) -> None:
    assert [row[OFFSETS] for row in rows_of(made)] == [[0, 2, 4], [1, 3, 5]]
    assert wrong(made, rows_of(made)) == set()


def test_a_window_that_the_wall_clock_closed_early_is_right(made: Strategy) -> None:
    first, second = rows_of(made)
    assert wrong(made, [first | {OFFSETS: [0, 2]}, second], 4) == set()


def test_each_wrong_window_is_found(made: Strategy) -> None:
    first, second = rows_of(made)
    assert wrong(made, [first, first, second]) == {"windows have two rows"}
    foreign = {"windows have records that are not theirs"}
    assert wrong(made, [first | {OFFSETS: [0, 4]}, second]) == foreign
    assert wrong(made, [first | {"customer": "z"}, second]) == foreign
    assert wrong(made, [first, second], 2) == {"records are in a window and in reduce_err"}


def test_the_records_in_the_windows_of_files_are_counted(made: Strategy, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

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
