"""Where reading begins, and where it goes on when an offset is gone; against a running broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
import structlog
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from kmr.errors import OffsetOutOfRange
from kmr.record import TopicPartition

from .members import numbers, values

if TYPE_CHECKING:
    from kmr.broker import Broker

    from .members import Consume, Produce


T0 = TopicPartition("t", 0)


async def test_a_new_group_may_want_only_new_records(consume: Consume, produce: Produce) -> None:
    await produce("t", numbers(5))
    async with consume(auto_offset_reset="latest", fetch_max_wait=0.05) as member:
        await member.until_assigned(bool)
        while member.consumer.end_offset(T0) is None:  # the position is settled by the first fetch
            with anyio.move_on_after(0.05):
                assert not await member.consumer.poll()
        await produce("t", numbers(5, 8))
        assert values(await member.read(3)) == numbers(5, 8)


async def test_without_a_policy_a_missing_offset_is_an_error_that_names_it(
    consume: Consume, produce: Produce
) -> None:
    await produce("t", numbers(5))
    async with consume(auto_offset_reset="error") as member:
        with pytest.raises(
            OffsetOutOfRange,
            match=r"t-0: group g has committed no offset; the log has offsets 0 to 5 .*auto_offset_reset",
        ):
            await member.consumer.poll()
        member.consumer.seek(T0, 100)
        with pytest.raises(
            OffsetOutOfRange,
            match=r"t-0: offset 100 is not on the broker .*; the log has offsets 0 to 5 .*kmr offsets reset",
        ):
            await member.consumer.poll()
        member.consumer.seek(T0, 3)
        assert values(await member.read(2)) == numbers(3, 5)


@pytest.mark.parametrize(("policy", "expected"), [("earliest", (5, 8)), ("latest", (8, 11))])
async def test_with_a_policy_an_offset_below_the_log_is_reset_and_logged(
    broker: Broker, consume: Consume, produce: Produce, policy: str, expected: tuple[int, int]
) -> None:
    await produce("t", numbers(8))
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    await admin.delete_records({T0: RecordsToDelete(5)})
    await admin.close()
    async with consume(on_out_of_range=policy) as member:
        await member.read(3)
        member.consumer.seek(T0, 2)
        with structlog.testing.capture_logs() as logs:
            async with anyio.create_task_group() as tasks:

                async def feed() -> None:
                    while not logs:
                        await anyio.lowlevel.checkpoint()
                    position = member.consumer._consumer.position
                    while await position(T0) != 8:  # noqa: ASYNC110  the policy settles it
                        await anyio.sleep(0.01)
                    await produce("t", numbers(8, 11))

                if policy == "latest":
                    tasks.start_soon(feed)
                assert values(await member.consumer.poll()) == numbers(*expected)
        (entry,) = logs
        assert entry["log_level"] == "error"
        assert entry["problem"] == "offset 2 is not on the broker (any more)"
