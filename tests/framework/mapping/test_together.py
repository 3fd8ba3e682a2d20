"""The maps of several batches together give what a map of each batch gives."""

from __future__ import annotations

import threading
from collections.abc import Iterator  # noqa: TC003  the annotation of a map is read
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kmr import Json, Strategy
from kmr.errors import StrategyError
from kmr.formats.batch_decoder import BatchDecoder
from kmr.formats.columns import Row as EncodedRow
from kmr.mapping.functions import apply, map_batch, map_record
from kmr.mapping.stop import Stop
from kmr.mapping.together import MappedBatch, Together, can_share
from kmr.record import TIME_COLUMNS, Batch, Record
from kmr.testing import Journal, MemoryWriter, batch_of
from tests.examples import examples
from tests.framework.formats.encoding import BatchSpec

if TYPE_CHECKING:
    from kmr.mapping.results import MapResult


class Hit(msgspec.Struct):
    path: str
    n: int | None = None


class Row(msgspec.Struct):
    n: int
    path: str | None


def plain(record: Record) -> dict[str, Any] | None:
    """Columns of values of one class, None among them; some filtered, some failed."""
    value = record.value or b""
    if value == b"skip":
        return None
    if value == b"fail":
        raise ValueError(f"offset {record.offset} of {record.partition}")
    return {"o": record.offset, "p": record.partition, "t": value.decode() if value else None}


def mixed(record: Record) -> Any:
    """Other columns, other types and several rows, by the value."""
    match record.value:
        case b"skip":
            return []
        case b"fail":
            raise SystemExit(3)
        case b"a":
            return {"o": record.offset}
        case b"b":
            return {"o": "text", "more": 1.5}
        case b"c":
            return [{"o": 2**63}, {"o": record.offset, "more": None}]
        case _:
            return {"o": None}


def generated(record: Record) -> Iterator[dict[str, Any]]:
    for number in range(record.offset % 3):
        if record.value == b"fail" and number:
            raise KeyError(number)
        yield {"number": number, "big": 2**70 if record.value == b"b" else 1}


SCHEMA: Any = [pa.field("o", pa.int8(), nullable=False), pa.field("t", pa.string())]


@map_record(schema=pa.schema(SCHEMA))
def declared(record: Record) -> dict[str, Any]:
    return {"o": None if record.value == b"" else record.offset * 50, "t": "x"}


def typed(hit: Hit) -> Row | None:
    if hit.path == "fail":
        raise ValueError(hit.path)
    return None if hit.path == "skip" else Row(hit.n or 0, hit.path)


def typed_and_record(hit: Hit, record: Record) -> Row:
    return Row(record.offset, f"{hit.path} {record.partition}")


@map_batch
def per_batch(records: pa.RecordBatch) -> pa.RecordBatch:
    if b"fail" in records.column("value").to_pylist():
        raise ValueError("fail")
    return records.select(["partition", "offset", "value", "kmr_offset"])


@map_batch(across=True)
def across(records: pa.RecordBatch) -> pa.RecordBatch:
    """Some records filtered, some repeated, some failed, and those that are left in another order."""
    values = records.column("value").to_pylist()
    if b"fail" in values:
        raise ValueError("fail")
    rows = [at for at, value in enumerate(values) if value != b"skip"]
    rows += [at for at in rows if values[at] == b"b"]
    return records.select(["partition", "offset", "value", "kmr_offset"]).take(
        pa.array(rows[::-1], pa.int64())
    )


@map_batch(across=True)
def across_and_kept(hits: pa.RecordBatch) -> tuple[pa.RecordBatch, list[bool]]:
    kept = [each != "skip" for each in hits.column("path").to_pylist()]
    return hits.select(["n", "partition", "offset"]).filter(pa.array(kept)), kept


def spec_of(strategy: Strategy) -> Any:
    return strategy.map_spec


def strategies() -> dict[str, Strategy]:
    sink = [MemoryWriter(Journal())]
    functions = {
        each.__name__: each for each in (plain, mixed, generated, declared, per_batch, across)
    }
    found = {name: Strategy(function, sink) for name, function in functions.items()}
    found["typed"] = Strategy(typed, sink, value=Json(Hit))
    found["typed and record"] = Strategy(typed_and_record, sink, value=Json(Hit))
    found["across and kept"] = Strategy(across_and_kept, sink, value=Json(Hit))
    found["values"] = Strategy(None, sink, value=Json(Hit))
    return found


STRATEGIES = strategies()
VALUES: list[bytes | None] = [b"a", b"b", b"c", b"", b"skip", b"fail", None]
JSON: list[bytes | None] = [
    *(b'{"path": "%b", "n": %d}' % (path, n) for n, path in enumerate((b"x", b"fail", b"skip"))),
    *(b'{"path": "y"}', b"{", b'{"path": 1}', None),
]


def same(one: MappedBatch | Exception | None, other: MapResult) -> None:
    assert isinstance(one, MappedBatch)
    result = one.result
    assert result.offsets.tolist() == other.offsets.tolist()
    assert [f[:2] for f in result.failures] == [f[:2] for f in other.failures]
    assert result.rest == other.rest
    if other.table is None:
        assert result.table is None
    else:
        assert result.table is not None
        assert result.table.schema == other.table.schema
        assert result.table.to_pylist() == other.table.to_pylist()


def batches_of(values: list[list[bytes | None]]) -> list[Batch]:
    """Batches of partitions 0, 1, 0, 1, ..., so that a partition has several."""
    return [batch_of("t", number % 2, 10 * number, each) for number, each in enumerate(values)]


@settings(max_examples=examples(450))
@example("mixed", [[0], [2, 3]])
@given(
    name=st.sampled_from(sorted(STRATEGIES)),
    picks=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), min_size=1, max_size=5),
)
def test_each_batch_becomes_what_it_becomes_alone(name: str, picks: list[list[int]]) -> None:
    strategy = STRATEGIES[name]
    pool = JSON if strategy.map_spec.inputs.value is not None else VALUES
    batches = batches_of([[pool[at] for at in each] for each in picks])
    together = Together(strategy.map, strategy.map_spec, batches, Stop())
    together.work()
    for batch, outcome in zip(batches, together.outcomes, strict=True):
        same(outcome, apply(strategy.map, batch.records, strategy.map_spec))
        assert isinstance(outcome, MappedBatch)
        assert outcome.records == len(batch)


def test_the_times_of_records_that_were_decoded_together_are_not_decoded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def batches() -> list[Batch]:
        decoder = BatchDecoder()
        rows = [EncodedRow(offset, 1_000 + offset, 0, None, b"a", []) for offset in (3, 5)]
        data = BatchSpec(base=3, last=5, rows=rows).encode()
        found = [decoder.batch("t", partition, data, 3) for partition in (0, 1)]
        return [each for each in found if each is not None]

    alone = [each.records.select(TIME_COLUMNS) for each in batches()]
    together = batches()
    strategy = STRATEGIES["plain"]
    Together(strategy.map, strategy.map_spec, together, Stop()).work()
    monkeypatch.setattr(Batch, "records", property(lambda batch: pytest.fail(f"decoded {batch}")))
    assert [each.times for each in together] == alone


@pytest.mark.parametrize("name", ["plain", "mixed", "per_batch"])
def test_what_a_slow_map_holds_up_is_finished_without_it(name: str) -> None:
    strategy = STRATEGIES[name]
    batches = batches_of([[b"a"], [b"a", b"skip"], [b"slow", b"a"], [b"a"]])
    reached, go_on = threading.Event(), threading.Event()

    def slow(record: Any) -> Any:
        values = (
            [record.value] if isinstance(record, Record) else record.column("value").to_pylist()
        )
        if b"slow" in values:
            reached.set()
            assert go_on.wait(60)
        return strategy.map(record) if strategy.map is not None else None

    together = Together(slow, strategy.map_spec, batches, Stop())
    thread = threading.Thread(target=together.work)
    thread.start()
    assert reached.wait(60)
    assert together.detach() == 2
    together.finish(2)
    for number in (0, 1):
        same(
            together.outcomes[number],
            apply(strategy.map, batches[number].records, strategy.map_spec),
        )
    assert together.outcomes[2:] == [None, None]
    go_on.set()
    thread.join()
    same(together.outcomes[2], apply(strategy.map, batches[2].records, strategy.map_spec))
    assert together.outcomes[3] is None
    assert together.detach() == 4


def test_a_map_across_partitions_is_called_once_and_is_not_held_up_by_one_of_them() -> None:
    calls: list[int] = []

    def called(records: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(len(records))
        assert together.detach() == 3
        return across(records)

    spec = STRATEGIES["across"].map_spec
    batches = batches_of([[b"a"], [b"skip", b"b"], [b"a", b"a"]])
    together = Together(called, spec, batches, Stop())
    together.work()
    assert calls == [5]
    for batch, outcome in zip(batches, together.outcomes, strict=True):
        same(outcome, apply(across, batch.records, spec))


def test_rows_of_a_map_across_partitions_that_keep_only_offsets_are_refused() -> None:
    @map_batch(across=True)
    def offsets(records: pa.RecordBatch) -> pa.RecordBatch:
        return records.select(["offset"])

    spec = STRATEGIES["across"].map_spec
    with pytest.raises(StrategyError, match="without `kmr_offset`"):
        apply(offsets, batch_of("t", 0, 7, [b"a"]).records, spec)
    with pytest.raises(StrategyError, match="without `kmr_offset`"):
        Together(offsets, spec, batches_of([[b"a"], [b"a"]]), Stop()).work()


def test_none_is_mapped_after_it_was_detached_while_it_decodes() -> None:
    calls: list[Record] = []
    decoding, go_on = threading.Event(), threading.Event()

    def load() -> pa.RecordBatch:
        decoding.set()
        assert go_on.wait(60)
        return batch_of("t", 0, 0, [b"a"]).records

    batches = [Batch("t", 0, 0, 0, nbytes=10, load=load), batch_of("t", 1, 0, [b"a"])]
    strategy = STRATEGIES["plain"]
    together = Together(calls.append, strategy.map_spec, batches, Stop())
    thread = threading.Thread(target=together.work)
    thread.start()
    assert decoding.wait(60)
    assert together.detach() == -1
    go_on.set()
    thread.join()
    assert (calls, together.outcomes) == ([], [None, None])


def test_a_stop_ends_the_batch_under_way_before_its_next_record_and_leaves_the_others() -> None:
    stop = Stop()

    def stopping(record: Record) -> dict[str, int]:
        if record.offset == 11:
            stop.request()
        return {"o": record.offset}

    batches = batches_of([[b"a"], [b"a", b"a", b"a"], [b"a"]])
    together = Together(stopping, STRATEGIES["plain"].map_spec, batches, stop)
    together.work()
    outcomes = [each for each in together.outcomes if isinstance(each, MappedBatch)]
    assert [each.result.rest for each in outcomes] == [None, 12, 20]
    assert [each.result.offsets.tolist() for each in outcomes] == [[0], [10, 11], []]
    assert [each.records for each in outcomes] == [1, 2, 0]


def test_a_result_that_is_no_row_fails_its_record_alone() -> None:
    def wrong(record: Record) -> Any:
        return 7 if record.offset == 10 else {"o": record.offset}

    together = Together(wrong, STRATEGIES["plain"].map_spec, batches_of([[b"a"], [b"a"]]), Stop())
    together.work()
    done, other = together.outcomes
    assert isinstance(done, MappedBatch)
    assert isinstance(other, MappedBatch)
    assert [(each.offset, "returned int" in each.reason) for each in other.result.failures] == [
        (10, True)
    ]


def test_maps_that_wait_or_repeat_are_not_made_together() -> None:
    async def awaited(record: Record) -> None: ...

    sink = [MemoryWriter(Journal())]
    repeated = map_record(concurrency=2)(lambda record: None)
    assert not can_share(Strategy(awaited, sink).map_spec)
    assert not can_share(Strategy(repeated, sink).map_spec)
    assert not can_share(replace(STRATEGIES["plain"].map_spec, per="result"))
    assert can_share(STRATEGIES["plain"].map_spec)
