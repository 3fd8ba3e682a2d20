"""What is left of a flush of changes: the last one of each key."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.errors import StrategyError
from kmr.sinks.changes import Applied, Changes
from kmr.values.value_format import REQUIRED

BY_ID = Changes("Sink", ("id",))
OLD_ID = pa.struct([("id", pa.int64())])


def table(*changes: tuple[str, int | None, str | None, int | None]) -> pa.Table:
    """Changes: op, id, name, and the id before."""
    ops, ids, names, before = zip(*changes, strict=True) if changes else ((), (), (), ())
    old = [None if each is None else {"id": each} for each in before]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array(names, pa.string()),
            "op": pa.array(ops, pa.string()),
            "before": pa.array(old, OLD_ID),
        }
    )


def rows(applied: Applied) -> list[tuple[Any, ...]]:
    found = applied.table.to_pylist()
    return [
        (row["id"], row["name"], bool(gone))
        for row, gone in zip(found, applied.deleted.tolist(), strict=True)
    ]


def test_the_last_change_of_a_key_wins() -> None:
    applied = BY_ID.apply(
        table(
            ("c", 1, "a", None),
            ("c", 2, "b", None),
            ("u", 1, "c", None),
            ("d", 2, "b", None),
            ("r", 3, "d", None),
        )
    )
    assert rows(applied) == [(1, "c", False), (2, None, True), (3, "d", False)]
    assert applied.source.tolist() == [2, 3, 4]
    assert applied.table.column_names == ["id", "name"]


def test_a_row_that_moves_to_another_key_leaves_the_old_one() -> None:
    applied = BY_ID.apply(table(("c", 1, "a", None), ("u", 2, "a", 1), ("u", 1, "b", None)))
    assert rows(applied) == [(2, "a", False), (1, "b", False)]
    applied = BY_ID.apply(table(("c", 1, "a", None), ("u", 2, "a", 1), ("u", 3, "a", 2)))
    assert rows(applied) == [(1, None, True), (2, None, True), (3, "a", False)]


def test_what_comes_before_a_truncate_is_needless() -> None:
    applied = BY_ID.apply(table(("c", 1, "a", None), ("t", None, None, None), ("c", 2, "b", None)))
    assert rows(applied) == [(2, "b", False)]
    assert applied.truncated == 1


def test_what_cannot_be_applied_is_refused_alone() -> None:
    applied = BY_ID.apply(
        table(
            ("c", None, "a", None), ("x", 1, "a", None), ("c", 2, "b", None), ("t",) + (None,) * 3
        )
    )
    assert list(applied.refused) == [1, 0]
    assert "null, though it is of the key" in applied.refused[0]
    assert "'x' is no operation" in applied.refused[1]
    assert rows(applied) == []


def test_columns_of_a_change_are_kept_where_the_destination_has_them() -> None:
    applied = BY_ID.apply(table(("c", 1, "a", None)), known=["id", "name", "op"])
    assert applied.table.column_names == ["id", "name", "op"]


def test_keys_may_have_several_columns() -> None:
    changes = Changes("Sink", ("a", "b"))
    given_ = pa.table({"a": [1, 1, 1], "b": ["x", "y", "x"], "n": [1, 2, 3], "op": ["c", "c", "u"]})
    assert changes.apply(given_).table.to_pylist() == [
        {"a": 1, "b": "y", "n": 2},
        {"a": 1, "b": "x", "n": 3},
    ]


def test_rows_that_are_no_changes_are_an_error() -> None:
    with pytest.raises(StrategyError, match="a column op"):
        BY_ID.apply(pa.table({"id": [1]}))
    with pytest.raises(StrategyError, match="no column id, which key= names"):
        BY_ID.apply(pa.table({"op": ["c"], "name": ["a"]}))
    with pytest.raises(StrategyError, match="no key can have the types"):
        BY_ID.apply(pa.table({"id": [[1]], "op": ["c"]}))


def test_arguments_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(StrategyError, match="needs key="):
        Changes.of("Sink", None, changes=True)
    with pytest.raises(StrategyError, match="set changes=True"):
        Changes.of("Sink", ["id"], changes=False)
    assert Changes.of("Sink", None, changes=False) is None


def test_a_table_for_changes_has_the_columns_of_the_row_and_no_null_in_the_key() -> None:
    fields: list[pa.Field[Any]] = [
        pa.field("id", pa.int64()),
        pa.field("name", pa.string(), metadata=REQUIRED),
        pa.field("note", pa.string()),
        pa.field("op", pa.string()),
        pa.field("before", OLD_ID),
    ]
    made: list[pa.Field[Any]] = [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("note", pa.string()),
    ]
    assert BY_ID.columns(pa.schema(fields)) == pa.schema(made)


OPS = st.tuples(st.sampled_from("cudt"), st.integers(0, 3), st.text("ab", max_size=1))


@given(st.lists(st.tuples(OPS, st.one_of(st.none(), st.integers(0, 3))), max_size=30), st.data())
def test_it_equals_a_dict_that_is_changed_one_by_one(
    changes: list[tuple[tuple[str, int, str], int | None]], data: st.DataObject
) -> None:
    given_ = [(op, key, name, old if op == "u" else None) for (op, key, name), old in changes]
    model: dict[int, str] = {}
    for op, key, name, old in given_:
        if op == "t":
            model.clear()
        elif op == "d":
            model.pop(key, None)
        else:
            if old is not None:
                model.pop(old, None)
            model[key] = name
    found: dict[int, str] = {}
    at = data.draw(st.integers(0, len(given_)))
    for part in (given_[:at], given_[at:]):
        applied = BY_ID.apply(table(*part))
        if applied.truncated is not None:
            found.clear()
        for key, name, gone in rows(applied):
            found.pop(key, None)
            if not gone:
                found[key] = name
    assert found == model
