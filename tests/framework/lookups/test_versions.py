"""Lookups by the record's time: both kinds of table find what a model of ten lines finds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr import Json, Lookup, LookupTable, Record, Strategy, map_batch
from kmr.errors import StrategyError
from kmr.lookups import columns_table, object_versions
from kmr.lookups.columns_table import ColumnsStore
from kmr.lookups.objects_table import ObjectsStore
from kmr.lookups.versions import RECORD_TIME, Horizon, TooOld
from kmr.record import SCHEMA
from kmr.sinks import StreamWriter
from kmr.testing import Journal, MemoryWriter, run_strategy

STORES = [ObjectsStore, ColumnsStore]
EARLY = 1_000_000_000  # microseconds


class Customer(msgspec.Struct):
    id: int
    name: str


class Order(msgspec.Struct):
    customer: int
    placed: datetime | None = None


Version = tuple[int, int, int, int, str | None]
"""Time, offset, partition, key, name."""


def lookup(**options: Any) -> Lookup:
    given: dict[str, Any] = {"as_of": "record", "keep": "1d"} | options
    return Lookup("customers", key="id", value=Json(Customer), **given)


def records(*versions: Version) -> pa.RecordBatch:
    """A batch of the topic."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "key": str(key).encode(),
                "value": None if name is None else msgspec.json.encode(Customer(key, name)),
                "topic": "customers",
                "partition": partition,
                "offset": offset,
                "timestamp": time,
            }
            for time, offset, partition, key, name in versions
        ],
        schema=SCHEMA,
    )


def moment(time: int) -> datetime:
    return datetime.fromtimestamp(time / 1e6, UTC)


def found(table: LookupTable, key: int, time: int) -> str | None:
    row: Any = table.get(key, at=moment(time))
    return None if row is None else row["name"] if isinstance(row, dict) else row.name


def model(versions: list[Version], key: int, time: int) -> str | None:
    """The last version of a key at a time."""
    known = [each for each in versions if each[3] == key and each[0] <= time]
    return max(known)[4] if known else None


@pytest.mark.parametrize("make", STORES)
def test_each_kind_of_version_has_its_rule(make: Any) -> None:
    store = make("customers", lookup())
    a, b, c = EARLY, EARLY + 10, EARLY + 20
    store.apply(records((a, 0, 0, 1, "ann"), (b, 1, 0, 1, None), (c, 2, 0, 1, "eve")))
    table = store.table()
    assert found(table, 1, a - 1) is None, "before the first version"
    assert [found(table, 1, at) for at in (a, b - 1, b, c - 1, c, c + 99)] == [
        *("ann", "ann", None, None, "eve", "eve"),
    ]
    store.apply(records((c, 3, 0, 1, "eva"), (a + 5, 4, 0, 1, "late")))
    table = store.table()
    assert found(table, 1, c) == "eva", "of equal times the later offset wins"
    assert [found(table, 1, at) for at in (a + 4, a + 5, b)] == ["ann", "late", None]
    assert (found(table, 2, c), len(table)) == (None, 1)
    store.apply(records((c + 1, 5, 0, 1, None), (c - 1, 6, 0, 2, None), (c - 2, 7, 0, 2, "bob")))
    table = store.table()
    assert (len(table), found(table, 2, c - 2), found(table, 2, c)) == (0, "bob", None)


@pytest.mark.parametrize("make", STORES)
def test_a_lookup_before_what_is_kept_fails_and_those_after_it_stay_right(make: Any) -> None:
    day = 86_400 * 1_000_000
    store = make("customers", lookup(max_bytes=20_000))
    store.table()
    for number in range(200):  # far more than there is room for
        at = EARLY + number * day // 4
        store.apply(records((at, number, 0, 1, f"n{number}"), (at + 1, number, 1, number, None)))
    table = store.table()
    newest = EARLY + 199 * day // 4 + 1
    assert [found(table, 1, newest - day + n * day // 4) for n in range(4)] == [
        *("n195", "n196", "n197", "n198")
    ]
    with pytest.raises(TooOld, match=r"customers keeps versions since 1970-.*: raise keep= of the"):
        table.get(1, None, at=moment(newest - day - 2))


@pytest.mark.parametrize("make", STORES)
def test_more_versions_than_there_is_room_for_are_refused(make: Any) -> None:
    store = make("customers", lookup(max_bytes=5_000))
    with pytest.raises(
        StrategyError, match="raise it, or keep less in the topic, or less by keep="
    ):
        store.apply(records(*((EARLY + n, n, 0, 1, "x") for n in range(200))))


def test_a_version_from_the_future_takes_no_other_away() -> None:
    store = ObjectsStore("customers", lookup())
    now = int(datetime.now(UTC).timestamp() * 1e6)
    store.apply(records((now - 1_000_000, 0, 0, 1, "ann"), (2 * now, 1, 0, 2, "bob")))
    assert found(store.table(), 1, now) == "ann"


VERSIONS = st.lists(
    st.tuples(
        st.integers(EARLY, EARLY + 6),
        st.integers(0, 3),
        st.one_of(st.none(), st.text("ab", max_size=2)),
    ),
    max_size=25,
)


@pytest.mark.parametrize("make", STORES)
@given(batches=st.lists(VERSIONS, min_size=1, max_size=3), partitions=st.integers(1, 2))
def test_any_history_is_found_as_a_model_of_ten_lines_finds_it(
    make: Any, batches: list[list[tuple[int, int, str | None]]], partitions: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns_table, "_MOST_NEW", 5)
        patch.setattr(object_versions, "_OFTEN", 5)
        store = make("customers", lookup(keep=1e-6 * 3))
        known: list[Version] = []
        seen: list[tuple[LookupTable, list[Version]]] = []
        for batch in batches:
            since = max((each[0] for each in known), default=EARLY) - 3  # later ones are forgotten
            new = [
                (time, len(known) + number, key % partitions, key, name)
                for number, (time, key, name) in enumerate(batch)
                if time >= since
            ]
            store.apply(records(*new))
            known = [*known, *new]
            seen.append((store.table(), known))
        for table, versions in seen if make is ColumnsStore else seen[-1:]:
            now = max((each[0] for each in versions), default=EARLY)
            for key in range(4):
                for at in range(now - 3, now + 4):
                    assert found(table, key, at) == model(versions, key, at)
            if make is ColumnsStore:
                rows = {row["id"]: row["name"] for row in table.to_arrow().to_pylist()}
                now_named = {key: model(versions, key, now) for key in range(4)}
                assert rows == {k: name for k, name in now_named.items() if name is not None}
                assert len(table) == len(rows)


TOPIC = [
    Record("customers", 0, number, b"1", value, EARLY + 1000 * number, 0)
    for number, value in enumerate([b'{"id":1,"name":"ann"}', b'{"id":1,"name":"eve"}', None])
]
ORDERS = [
    Record("orders", 0, number, None, b'{"customer": 1}', EARLY - 1 + 500 * number, 0)
    for number in range(6)
]


def of_value(order: Order, customers: LookupTable) -> dict[str, Any]:
    row = customers.get(order.customer)
    return {"name": row and row.name}


def of_both(order: Order, record: Record, customers: LookupTable) -> dict[str, Any]:
    assert RECORD_TIME.get() == record.timestamp_us
    return of_value(order, customers)


def several(order: Order, customers: LookupTable) -> Any:
    yield of_value(order, customers)


async def awaited(order: Order, customers: LookupTable) -> dict[str, Any]:
    return of_value(order, customers)


@map_batch
def of_batch(orders: Any, customers: LookupTable) -> Any:
    return customers.join(orders, on="customer").select(["name", "kmr_offset"])


@pytest.mark.parametrize("function", [of_value, of_both, several, awaited, of_batch])
def test_each_kind_of_map_looks_up_by_the_time_of_its_record(function: Any) -> None:
    strategy = Strategy(
        value=Json(Order),
        map=function,
        tables={"customers": lookup()},
        reduce=StreamWriter("stdout"),
    )
    run = run_strategy(strategy.with_tables({"customers": TOPIC}), ORDERS)
    assert [row["name"] for row in run.rows] == [None, "ann", "ann", "eve", "eve", None]
    run = run_strategy(strategy.with_tables({"customers": [Customer(1, "of old")]}), ORDERS[:1])
    assert run.rows == [{"name": "of old"}]


def test_a_map_of_raw_records_looks_up_by_their_time() -> None:
    def raw(record: Record, customers: LookupTable) -> dict[str, Any]:
        return {"name": getattr(customers.get(1), "name", None)}

    strategy = Strategy(
        map=raw, tables={"customers": lookup()}, reduce=StreamWriter("stdout")
    ).with_tables({"customers": TOPIC})
    assert [row["name"] for row in run_strategy(strategy, ORDERS[1:4]).rows] == [
        *("ann", "ann", "eve")
    ]


def test_a_column_of_the_batch_may_say_the_time() -> None:
    @map_batch
    def of_field(orders: Any, customers: LookupTable) -> Any:
        return customers.join(orders, on="customer", at="placed").select(["name", "kmr_offset"])

    strategy = Strategy(
        value=Json(Order),
        map=of_field,
        tables={"customers": lookup()},
        reduce=StreamWriter("stdout"),
    ).with_tables({"customers": TOPIC})
    orders = [Order(1, moment(EARLY + 1)), Order(1, moment(EARLY + 1001)), Order(1, None)]
    run = run_strategy(strategy, [msgspec.json.encode(each) for each in orders])
    assert [row["name"] for row in run.rows] == ["ann", "eve", None]


def test_only_the_records_that_are_too_old_fail() -> None:
    class Late(msgspec.Struct):
        customer: int

    hour = 3_600 * 1_000_000
    topic = [
        Record("customers", 0, n, b"1", b'{"id":1,"name":"n%d"}' % n, EARLY + n * hour, 0)
        for n in range(5)
    ]
    orders = [
        Record("orders", 0, n, None, b'{"customer": 1}', EARLY + n * hour, 0) for n in range(5)
    ]
    for function in (of_value, of_batch):
        strategy = Strategy(
            value=Json(Late),
            map=function,
            tables={"customers": lookup(keep="2h")},
            reduce=StreamWriter("stdout"),
            reduce_err=MemoryWriter(Journal()),
        ).with_tables({"customers": topic})
        run = run_strategy(strategy, orders)
        assert [row["name"] for row in run.rows] == ["n2", "n3", "n4"]
        assert [each["offset"] for each in run.failures] == [0, 1]
        assert "TooOld: customers keeps versions since" in run.failures[0]["reason"]


def test_what_cannot_be_says_why() -> None:
    with pytest.raises(StrategyError, match='as_of="record" and keep= belong together'):
        lookup(keep=None)
    with pytest.raises(StrategyError, match="as_of must be 'record' or None, not 'placed'"):
        lookup(as_of="placed")
    with pytest.raises(StrategyError, match="keep: 'no' is not a number"):
        lookup(keep="no")
    with pytest.raises(StrategyError, match="the result of a query has one row of each key"):
        Lookup.query("SELECT 1 AS id", key="id", every="5m", as_of="record")
    made: list[Any] = [make("customers", lookup()).table() for make in STORES]
    objects, columns = made
    with pytest.raises(StrategyError, match=r"customers\.get: no record is mapped here"):
        columns.get(1)
    with pytest.raises(StrategyError, match="at=5 must be a datetime"):
        objects.get(1, at=5)
    batch = pa.RecordBatch.from_pydict({"customer": [1], "when": [1]})
    with pytest.raises(StrategyError, match="no column timestamp, the record's time: keep it"):
        columns.join(batch, on="customer")
    with pytest.raises(StrategyError, match="no column then, which at= names"):
        columns.join(batch, on="customer", at="then")
    with pytest.raises(StrategyError, match="column when is int64, and the time of a lookup is a"):
        columns.join(batch, on="customer", at="when")
    for make in STORES:
        table = make("customers", lookup(as_of=None, keep=None)).table()
        with pytest.raises(StrategyError, match="at= needs versions"):
            table.get(1, at=moment(EARLY))

    class Timed(msgspec.Struct):
        customer: int
        timestamp: datetime

    with pytest.raises(StrategyError, match="a field timestamp, which hides that of the record"):
        Strategy(
            value=Json(Timed),
            map=of_batch,
            tables={"customers": lookup()},
            reduce=StreamWriter("stdout"),
        )
    strategy = Strategy(
        value=Json(Order),
        map=of_value,
        tables={"customers": lookup()},
        reduce=StreamWriter("stdout"),
    )
    with pytest.raises(StrategyError, match="are all Records, or none of them is"):
        strategy.with_tables({"customers": [TOPIC[0], Customer(1, "ann")]})
    bad = strategy.with_tables({"customers": [msgspec.structs.replace(TOPIC[0], value=b"{")]})
    with pytest.raises(StrategyError, match="a given record makes no row: offset 0: "):
        run_strategy(bad, ORDERS)


def test_what_is_kept_does_not_grow_when_the_clock_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    horizon = Horizon(keep=10.0)
    horizon.note((100_000_000, 0, 0))
    monkeypatch.setattr("time.time", lambda: 100.0)
    horizon.advance()
    monkeypatch.setattr("time.time", lambda: 50.0)
    horizon.advance()
    assert horizon.since == 90_000_000
