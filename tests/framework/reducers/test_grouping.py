"""Groups of rows: their order."""

from __future__ import annotations

import random

import pyarrow as pa

from kmr.reducers.grouping import group, numbers_of_rows


def test_groups_come_in_the_order_of_their_first_rows_where_that_is_wanted() -> None:
    # pyarrow alone has another order for some of these tables.
    for seed in range(40):
        chance = random.Random(seed)
        sizes = [chance.randint(1, 8) for _ in range(chance.randint(1, 6))]
        parts = [
            {"a": [chance.randint(0, 9) for _ in range(n)], "b": chance.choices("ab", k=n)}
            for n in sizes
        ]
        table = pa.concat_tables([pa.table(part) for part in parts])
        keys = [(row["a"], row["b"]) for row in table.to_pylist()]
        grouped = group(table, ["a", "b"], [([], "count_all")], in_order=True).to_pylist()
        assert [(row["a"], row["b"]) for row in grouped] == list(dict.fromkeys(keys))
        rows = pa.concat_tables([table.select(["a", "b"])])
        groups = group(rows, ["a", "b"], []).to_pylist()
        places = numbers_of_rows(rows, ["a", "b"])
        assert [
            {tuple(rows.slice(at, 1).to_pylist()[0].values()) for at in each} for each in places
        ] == [{tuple(row.values())} for row in groups]
