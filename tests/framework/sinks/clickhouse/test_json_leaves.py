"""The paths of values in a JSON column."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kmr.columns.kinds import rows_where
from kmr.sinks.clickhouse.json_leaves import bad_leaves, has_type, leaves_of

if TYPE_CHECKING:
    from kmr.columns.kinds import Array, Mask


def test_the_values_of_a_text_have_their_paths_and_fractions_are_decimals() -> None:
    text = '{"a": {"b": 1, "c": [1.5, {"d": null}]}, "e": [[true]]}'
    assert leaves_of(text) == [
        (".a.b", 1),
        (".a.c[]", Decimal("1.5")),
        (".a.c[].d", None),
        (".e[][]", True),
    ]
    assert (
        leaves_of('{"a":') == leaves_of(None) == leaves_of("[1]") == leaves_of("[" * 100_000) == []
    )


def test_a_check_sees_the_values_of_each_path_and_marks_their_objects() -> None:
    kind = pa.map_(pa.string(), pa.struct([("n", pa.list_(pa.int64()))]))
    maps = pa.array([[("a", {"n": [1, 7]}), ("b", None)], [], [("b", {"n": [7]})]], kind)
    seen: list[Any] = []

    def check(values: Array) -> Mask:
        seen.append(values.to_pylist())
        return rows_where(pc.equal(values, pa.scalar(7)))

    found = bad_leaves(maps, [], check)
    assert found is not None
    assert found.tolist() == [True, False, True]
    assert seen == [[1, 7], [7]]
    typed = bad_leaves(maps, ["a.n"], check)
    assert typed is not None
    assert typed.tolist() == [False, False, True]
    assert has_type(".a.n[]", ["a.n"])
    assert not has_type(".a.nn", ["a.n"])
