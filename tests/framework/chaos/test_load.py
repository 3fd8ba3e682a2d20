"""Records that are sent over and over, and what the broker has acknowledged of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from kmr.chaos.course import Load
from kmr.chaos.delivered import read_batches
from kmr.chaos.services import ProcessRecord

if TYPE_CHECKING:
    from kmr.testing import StartBroker


async def test_what_is_acknowledged_is_in_the_topic_with_its_value(
    start_broker: StartBroker,
) -> None:
    broker = await start_broker(default_partitions=2)
    values: list[bytes | None] = [b"a", None, b"c"]
    journal = ProcessRecord(lambda text: None)
    load = Load(broker.bootstrap_servers, {"t": values, "u": [b"x"]}, 2, 1e6, journal)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load.run)
            await load.until_more(100)
            load.stop()
    assert load.count == load.sent >= 100
    assert load.unknown == 0
    found: dict[tuple[str, int], dict[int, bytes | None]] = {}
    for batch in await read_batches(broker.bootstrap_servers, ["t", "u"]):
        records = zip(batch.offsets().tolist(), batch.records["value"].to_pylist(), strict=True)
        found.setdefault(batch.topic_partition, {}).update(records)
    assert found == load.acknowledged
    assert {value for each in found.values() for value in each.values()} == {b"a", None, b"c", b"x"}
    assert journal.noticed == []
