"""Retention, or `DeleteRecords`, removes records that open windows hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from structlog.testing import capture_logs

from kmr import Strategy
from kmr.errors import OffsetOutOfRange
from kmr.testing import Journal, MemoryWriter
from kmr.worker import Worker
from tests.framework.guarantees.working import quick_settings, working
from tests.framework.memory.test_window import parse, window, windows_of

if TYPE_CHECKING:
    from kmr.broker import Broker
    from tests.framework.conftest import Produce

OPEN = [b"3", b"12", b"14"]  # the third window is open, with offsets 1 and 2
CLOSING = b"25"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def strategy(journal: Journal) -> Strategy:
    return Strategy(map=parse, reduce=[window(), MemoryWriter(journal, max_age=0.05)])


async def delete_below(broker: Broker, offset: int) -> int:
    """Delete records as retention does; return the first one that is left."""
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    try:
        at = TopicPartition("t", 0)
        found = await admin.delete_records({at: RecordsToDelete(offset)})
        return int(found[at])
    finally:
        await admin.close()


async def test_a_worker_that_has_read_the_records_of_open_windows_needs_them_no_more(
    broker: Broker, produce: Produce
) -> None:
    await produce("t", OPEN)
    journal = Journal()
    async with working(strategy(journal), quick_settings(broker)):
        await journal.until(lambda j: j.count == 1)
        assert await delete_below(broker, 3) == 3
        await produce("t", [CLOSING])
        await journal.until(lambda j: j.count == 2)
    assert windows_of(journal) == [(0, [0]), (10, [1, 2])]


async def test_a_worker_that_lacks_records_of_open_windows_ends_or_names_the_windows(
    broker: Broker, produce: Produce
) -> None:
    await produce("t", OPEN)
    journal, settings = Journal(), quick_settings(broker)
    async with working(strategy(journal), settings) as worker:
        await journal.until(lambda j: j.count == 1)
        with anyio.fail_after(60):
            while worker.status().partitions[0].watermark != 1:  # noqa: ASYNC110
                await anyio.sleep(0.01)
    assert await delete_below(broker, 2) == 2
    await produce("t", [CLOSING])

    with pytest.raises(OffsetOutOfRange, match="Windows that are open may have records there"):
        await Worker(strategy(journal), settings).run()
    assert windows_of(journal) == [(0, [0])]

    passing = quick_settings(broker, on_out_of_range="earliest")
    with capture_logs() as logs:
        async with working(strategy(journal), passing):
            await journal.until(lambda j: j.count == 2)
    assert windows_of(journal) == [(0, [0]), (10, [2])]
    (told,) = [log for log in logs if log["event"].startswith("rows of windows are incomplete")]
    assert (told["offsets"], told["after"]) == ("1..1", "2026-01-01T00:00:14.000Z")
