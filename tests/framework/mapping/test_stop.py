"""A map that is stopped has mapped the records before, and says where the others begin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kmr.mapping.functions import apply, apply_async, map_record
from kmr.mapping.stop import Stop
from kmr.testing import batch_of

if TYPE_CHECKING:
    from kmr.record import Record

RECORDS = batch_of("t", 0, 10, [b"a", b"b", b"c"]).records


@pytest.mark.parametrize(
    ("during", "mapped_offsets", "rest"),
    [(10, [10], 11), (11, [10, 11], 12), (12, [10, 11, 12], None)],
)
async def test_the_call_under_way_is_the_last_one(
    during: int, mapped_offsets: list[int], rest: int | None
) -> None:
    def row(record: Record) -> dict[str, Any]:
        if record.offset == during:
            stop.request()
        return {"o": record.offset}

    @map_record
    def plain(record: Record) -> dict[str, Any]:
        return row(record)

    @map_record
    async def coroutine(record: Record) -> dict[str, Any]:
        return row(record)

    stop = Stop()
    mapped = apply(plain, RECORDS, stop=stop)
    assert (mapped.offsets.tolist(), mapped.rest) == (mapped_offsets, rest)
    stop = Stop()
    mapped = await apply_async(coroutine, RECORDS, stop=stop)
    assert (mapped.offsets.tolist(), mapped.rest) == (mapped_offsets, rest)


def test_a_map_that_was_stopped_before_its_first_record_maps_none() -> None:
    @map_record
    def refused(record: Record) -> None:
        raise AssertionError("it must not begin")

    stop = Stop()
    stop.request()
    mapped = apply(refused, RECORDS, stop=stop)
    assert (mapped.table, mapped.failures, mapped.rest) == (None, (), 10)
