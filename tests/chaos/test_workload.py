"""The workers' strategies."""

from __future__ import annotations

from typing import get_args

import pytest

from chaos.workload import ID_BYTES, Mode, Workload, identify_anew, identify_with_place
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
