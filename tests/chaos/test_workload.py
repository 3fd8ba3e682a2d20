"""The workers' strategies."""

from __future__ import annotations

from typing import get_args

import pyarrow as pa
import pytest

from chaos.tables import whole_records
from chaos.workload import (
    ID_BYTES,
    Mode,
    Workload,
    identify_anew,
    identify_or_raise,
    identify_with_place,
)
from kmr.mapping.functions import apply
from kmr.testing import batch_of


def test_each_record_is_identified_and_only_the_poisoned_one_fails() -> None:
    values = [b"%0*d...." % (ID_BYTES, number) for number in range(100)]
    values[42] = b"poison".ljust(ID_BYTES, b"!")
    mapped = apply(identify_with_place, batch_of("t", 3, 10, values).records)
    assert [failure.offset for failure in mapped.failures] == [52]
    table = mapped.table
    assert table is not None
    assert table.column("id").to_pylist() == [n for n in range(100) if n != 42]
    assert table.column("offset").to_pylist() == [10 + n for n in range(100) if n != 42]
    assert set(table.column("partition").to_pylist()) == {3}


@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize(("table", "topic"), [("d", ""), ("", "d")])
def test_every_mode_makes_a_strategy_that_can_travel(mode: Mode, table: str, topic: str) -> None:
    assert Workload("t", mode).strategy().reduce_err is None
    strategy = Workload("t", mode, table, topic).strategy()
    strategy.validate()
    assert strategy.reduce_err is not None
    if not mode.startswith(("commit", "resume")):
        assert strategy.requested_delivery == mode


def test_with_new_columns_each_id_is_in_the_column_of_its_change() -> None:
    values = [b"%0*d...." % (ID_BYTES, number) for number in (2_499, 2_500, 10**6)]
    mapped = apply(identify_anew, batch_of("t", 3, 10, values).records)
    assert mapped.table is not None
    assert mapped.offsets.tolist() == [10, 11, 12]
    assert mapped.table.to_pylist() == [
        {"v0": 2_499, "v1": None, "v99": None},
        {"v0": None, "v1": 2_500, "v99": None},
        {"v0": None, "v1": None, "v99": 10**6},
    ]
    assert Workload.of(Workload("t", evolve=True).environment()).evolve


def test_a_map_that_raises_no_exception_of_pythons_fails_the_poisoned_record_alone() -> None:
    values = [b"%0*d...." % (ID_BYTES, number) for number in range(10)]
    for at in (2, 5, 7, 8):
        values[at] = b"poison".ljust(ID_BYTES, b"!")
    mapped = apply(identify_or_raise, batch_of("t", 0, 0, values).records)
    assert [failure.offset for failure in mapped.failures] == [2, 5, 7, 8]
    assert len({failure.reason.partition(":")[0] for failure in mapped.failures}) > 1


def test_a_record_of_many_rows_is_there_when_all_of_them_are() -> None:
    offsets = [0] * 3 + [1] * 2 + [2] * 4
    rows = pa.table(
        {
            "topic": ["t"] * 9,
            "partition": [0] * 9,
            "offset": offsets,
            "id": offsets,
            "time": list(range(9)),
        }
    )
    found = whole_records(rows, 3)
    assert found.select(["offset", "time"]).to_pylist() == [
        {"offset": 0, "time": 0},
        *[{"offset": 2, "time": 5}] * 2,
    ]
