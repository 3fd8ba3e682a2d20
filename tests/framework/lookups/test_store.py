"""What records of a compacted topic make of both kinds of table: the same as of a dict by record keys."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr import Debezium, Json, Lookup
from kmr.errors import StrategyError
from kmr.lookups import columns_table
from kmr.lookups.columns_table import ColumnsStore
from kmr.lookups.objects_table import ObjectsStore

if TYPE_CHECKING:
    from kmr.lookups.store import Store


class Customer(msgspec.Struct):
    id: int
    name: str


LOOKUP = Lookup("customers", key="id", value=Json(Customer))
STORES = [ObjectsStore, ColumnsStore]


def records(*pairs: tuple[bytes | None, object]) -> pa.RecordBatch:
    values = [v if v is None or isinstance(v, bytes) else msgspec.json.encode(v) for _, v in pairs]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([key for key, _ in pairs], pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(range(len(pairs)), pa.int64()),
        ],
        names=["key", "value", "offset"],
    )


def name_of(store: Store, key: object) -> Any:
    row = store.table().get(key)
    return row if row is None else row["name"] if isinstance(row, dict) else row.name


@pytest.mark.parametrize("make", STORES)
@pytest.mark.parametrize("text", [str, lambda n: f'{{"id": {n}}}'])
def test_the_newest_value_of_a_key_counts_and_a_null_deletes(make: Any, text: Any) -> None:
    store = make("customers", LOOKUP)
    one, two = text(1).encode(), text(2).encode()
    store.apply(records((one, Customer(1, "ada")), (two, Customer(2, "bob")), (one, None)))
    assert (name_of(store, 1), name_of(store, 2), len(store)) == (None, "bob", 1)
    store.apply(records((one, Customer(1, "eve")), (two, Customer(2, "bo"))))
    assert (name_of(store, 1), name_of(store, 2), len(store)) == ("eve", "bo", 2)


@pytest.mark.parametrize("make", STORES)
def test_a_record_key_whose_value_gets_another_key_names_one_row(make: Any) -> None:
    store = make("customers", LOOKUP)
    store.apply(records((b"x", Customer(1, "ada")), (b"x", Customer(2, "ada"))))
    assert (name_of(store, 1), name_of(store, 2), len(store)) == (None, "ada", 1)
    store.apply(records((b"x", None)))
    assert len(store) == 0


@pytest.mark.parametrize("make", STORES)
def test_a_record_key_that_becomes_the_text_of_its_row_deletes_that_row(make: Any) -> None:
    store = make("customers", LOOKUP)
    store.apply(records((b"1", Customer(2, "ada")), (b"1", Customer(1, "ada"))))
    assert (name_of(store, 1), name_of(store, 2), len(store)) == ("ada", None, 1)
    store.apply(records((b"1", None)))
    assert len(store) == 0


@pytest.mark.parametrize("make", STORES)
def test_a_second_null_of_a_record_key_deletes_no_row_of_another(make: Any) -> None:
    store = make("customers", LOOKUP)
    store.apply(records((b"x", Customer(1, "ada")), (b"x", None), (b"1", Customer(1, "bob"))))
    store.apply(records((b"x", None)))
    assert (name_of(store, 1), len(store)) == ("bob", 1)


@pytest.mark.parametrize("make", STORES)
def test_values_that_make_no_row_are_counted_and_leave_the_others(make: Any) -> None:
    store = make("customers", LOOKUP)
    store.apply(records((b"1", b"{"), (None, Customer(2, "bob")), (b"9", None)))
    assert (len(store), store.rejected) == (1, 1)
    assert store.example.startswith("offset 0: ")


@pytest.mark.parametrize("make", STORES)
def test_a_table_that_grows_beyond_its_memory_is_refused(make: Any) -> None:
    store = make("customers", Lookup("c", key="id", value=Json(Customer), max_bytes=1000))
    with pytest.raises(StrategyError, match="more than max_bytes=1,000; raise it"):
        store.apply(records(*((str(n).encode(), Customer(n, "x")) for n in range(50))))


@pytest.mark.parametrize("make", STORES)
def test_changes_of_debezium_are_followed(make: Any) -> None:
    store = make("customers", Lookup("c", key="id", value=Debezium(Json(Customer))))

    lsn = itertools.count(1)

    def event(op: str, before: Customer | None, after: Customer | None) -> dict[str, object]:
        return {
            "op": op,
            "before": before,
            "after": after,
            "source": {"connector": "postgresql", "lsn": next(lsn)},
        }

    ada, bob = Customer(1, "ada"), Customer(2, "bob")
    store.apply(
        records(
            (b'{"id":1}', event("r", None, ada)),
            (b'{"id":2}', event("c", None, bob)),
            (b'{"id":1}', event("u", None, Customer(1, "eve"))),
            (b'{"id":2}', event("d", bob, None)),
            (b'{"id":2}', None),
        )
    )
    assert (name_of(store, 1), name_of(store, 2), len(store)) == ("eve", None, 1)


@pytest.mark.parametrize("make", STORES)
@pytest.mark.parametrize("keys", ["id", ["id", "name"]])
def test_a_delete_without_the_row_deletes_what_the_key_of_its_record_names(
    make: Any, keys: Any
) -> None:
    """As of MongoDB without pre-images, or of PostgreSQL without a replica identity; no tombstone follows."""
    store = make("customers", Lookup("c", key=keys, value=Debezium(Json(Customer))))

    def event(op: str, after: Customer | None) -> dict[str, object]:
        source = {"connector": "postgresql", "lsn": 1}
        return {"op": op, "before": None, "after": after, "source": source}

    created = [(b'{"id":%d}' % n, event("c", Customer(n, "x"))) for n in (1, 2)]
    store.apply(records(*created, (b'{"id":1}', event("d", None))))
    assert (len(store), store.rejected) == (1, 0)


@pytest.mark.parametrize("make", STORES)
def test_a_key_of_several_fields_is_a_tuple(make: Any) -> None:
    store = make("c", Lookup("c", key=["id", "name"], value=Json(Customer)))
    store.apply(records((b"a", Customer(1, "ada")), (b"b", Customer(1, "bob")), (b"a", None)))
    assert store.table().get((1, "ada")) is None
    assert store.table().get((1, "bob")) is not None


HISTORY = st.lists(
    st.tuples(st.integers(0, 12), st.one_of(st.none(), st.integers(0, 12), st.just("bad"))),
    max_size=60,
)


@pytest.mark.parametrize("make", STORES)
@given(batches=st.lists(HISTORY, max_size=4), merge=st.integers(1, 20))
def test_any_history_makes_the_rows_of_a_dict_by_record_keys(
    make: Any, batches: list[list[tuple[int, Any]]], merge: int
) -> None:
    """A record key owns one row; values of other record keys never have the same row key here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns_table, "_MOST_NEW", merge)
        store = make("customers", LOOKUP)
        model: dict[int, tuple[int, str]] = {}
        seen: list[tuple[Any, dict[int, str]]] = []
        for number, batch in enumerate(batches):
            pairs: list[tuple[bytes | None, object]] = []
            for record_key, value in batch:
                raw = f"key {record_key}".encode()
                row_key = record_key * 100 + (value if isinstance(value, int) else 0)
                if value == "bad":
                    pairs.append((raw, b"{"))
                elif value is None:
                    pairs.append((raw, None))
                    model.pop(record_key, None)
                else:
                    name = f"{number} {len(pairs)}"
                    pairs.append((raw, Customer(row_key, name)))
                    model[record_key] = (row_key, name)
            store.apply(records(*pairs))
            seen.append((store.table(), dict(model.values())))
        tables = seen if make is ColumnsStore else seen[-1:]
        for table, expected in tables:  # a table that a map has does not change
            assert len(table) == len(expected)
            for key in range(1300):
                row = table.get(key)
                found = None if row is None else row["name"] if isinstance(row, dict) else row.name
                assert found == expected.get(key)
