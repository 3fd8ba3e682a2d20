"""A consumer group, as it is seen from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from kmr.broker.client import BatchProducer
from kmr.chaos.site import GroupsView
from kmr.kafka.admin import connect_admin
from kmr.kafka.connection import ConnectionConfig
from kmr.kafka.consumer import CommitOffset
from kmr.record import TopicPartition

if TYPE_CHECKING:
    from kmr.broker import Broker


class Notes:
    """Keeps the lines of commits."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def line(self, table: str, **values: object) -> dict[str, Any]:
        assert table == "commits"
        self.lines.append(dict(values))
        return self.lines[-1]

    def event(self, kind: str, name: str, detail: str = "") -> dict[str, Any]:
        return {}


async def test_each_change_of_a_committed_offset_is_seen_and_kept(broker: Broker) -> None:
    notes = Notes()
    view = GroupsView(broker.bootstrap_servers, ["g"], notes)
    async with BatchProducer(broker.bootstrap_servers, "t", acks=1) as producer:
        await producer.send([b"x"] * 10)
    config = ConnectionConfig(bootstrap_servers=broker.bootstrap_servers)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(view.watch)
            await view.until_seen()
            assert view.members("g") == frozenset()
            assert view.owns("g", "nobody") == 0
            for offset in (3, 7):
                async with connect_admin(config) as admin:
                    await admin.reset_offsets("g", {TopicPartition("t", 0): CommitOffset(offset)})
                await view.until(
                    lambda wanted=offset: view.offsets["g"].get(("t", 0)) == wanted  # type: ignore[misc]
                )
            tasks.cancel_scope.cancel()
    assert [line["offset"] for line in notes.lines] == [3, 7]
