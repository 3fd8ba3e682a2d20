"""Rows that are given in the place of a topic."""

from __future__ import annotations

import msgspec
import pytest

from kmr import Json, Lookup
from kmr.errors import StrategyError
from kmr.lookups.given import GivenRows


class Customer(msgspec.Struct):
    id: int
    name: str = "?"


LOOKUP = Lookup("customers", key="id", value=Json(Customer))


@pytest.mark.parametrize("rows", [[Customer(1, "ada")], [{"id": 1, "name": "ada"}]])
def test_given_rows_are_a_table_for_both_kinds_of_map(rows: list[object]) -> None:
    given = GivenRows(LOOKUP, rows)
    assert given.table("customers", as_columns=False).get(1) == rows[0]
    table = given.table("customers", as_columns=True)
    assert table.get(1) == {"id": 1, "name": "ada"}
    assert (len(table), 1 in table, 2 in table) == (1, True, False)


def test_given_rows_that_do_not_fit_their_columns_are_explained() -> None:
    given = GivenRows(LOOKUP, [{"id": "one", "name": "ada"}])
    with pytest.raises(StrategyError, match="table customers: the given rows do not fit"):
        given.table("customers", as_columns=True)
