"""Exactly once into ClickHouse: ranges that a killed worker announced and may have written."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import anyio
import clickhouse_connect
import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from anyio import to_thread
from structlog.testing import capture_logs

from kmr.cli.root import GROUP, run_command
from kmr.delivery.announcement import Announcement, Generation
from kmr.errors import ConsumerError, OffsetOutOfRange, StrategyError, UnexpectedDuplicate
from kmr.kafka.admin import connect_admin
from kmr.kafka.connection import connection_config
from kmr.kafka.consumer import CommitOffset
from kmr.kafka.kafka_consumer import KafkaConsumer
from kmr.mapping.functions import map_record
from kmr.record import Record, TopicPartition
from kmr.reducers.aggregate import Aggregate
from kmr.reducers.reducer import Retry
from kmr.reducers.sink import NEW, Write
from kmr.settings import Settings
from kmr.sinks import ClickHouseWriter
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryWriter
from kmr.worker import Worker
from tests.framework.guarantees.working import working
from tests.framework.workers import until_settled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clickhouse_connect.driver.client import Client

    from kmr.broker import Broker
    from tests.framework.conftest import Produce

T0 = TopicPartition("t", 0)


@map_record
def locate(record: Record) -> dict[str, int] | None:
    if record.value == b"poison":
        raise ValueError("poisoned")
    if record.value == b"skip":
        return None
    return {"n": 1}


class Sink:
    """A new table and its rows."""

    def __init__(self, client: Client, url: str, table: str) -> None:
        self.client = client
        self.url = url
        self.table = table

    def create(
        self,
        window: int = 10_000,
        columns: str = "`topic` String, `partition` UInt32, `offset` UInt64, `n` UInt8 DEFAULT 1",
    ) -> None:
        self.client.command(f"DROP TABLE IF EXISTS {self.table}")
        self.client.command(
            f"CREATE TABLE {self.table} ({columns}) ENGINE = MergeTree "
            f"ORDER BY tuple() SETTINGS non_replicated_deduplication_window = {window}"
        )

    def writer(self, **arguments: Any) -> ClickHouseWriter:
        limits: dict[str, Any] = {"max_rows": 1000, "max_age": 0.05}
        return ClickHouseWriter(self.table, url=self.url, **limits | arguments)

    def write(self, first: int, last: int, token: str) -> None:
        """Write a range, as a worker does after its announcement and before it is killed."""
        self.client.command(
            f"INSERT INTO {self.table} SELECT 't', 0, {first} + number, 1 FROM numbers({last - first + 1})",
            settings={"insert_deduplication_token": token},
        )

    @property
    def offsets(self) -> list[int]:
        found = self.client.query(f"SELECT `offset` FROM {self.table} ORDER BY `offset`")
        return [row[0] for row in found.result_rows]


@pytest.fixture
def sink(clickhouse_url: str, request: pytest.FixtureRequest) -> Iterator[Sink]:
    with clickhouse_connect.get_client(dsn=clickhouse_url, autogenerate_session_id=False) as client:
        sink = Sink(client, clickhouse_url, f"once{abs(hash(request.node.nodeid))}")
        sink.create()
        yield sink
        client.command(f"DROP TABLE IF EXISTS {sink.table}")


def settings_of(broker: Broker, **options: Any) -> Settings:
    defaults: dict[str, Any] = {"topics": ("t",), "group": "g", "heartbeat_interval": 0.1}
    defaults |= {"bootstrap_servers": broker.bootstrap_servers, "commit_interval": 0.05}
    return Settings(**defaults | options)


async def work_through(strategy: Strategy, settings: Settings, until: int) -> None:
    """Run a worker until everything below this offset of partition 0 is settled."""
    async with working(strategy, settings) as worker:
        await until_settled(worker, T0, until)


async def announce(broker: Broker, first: int, last: int, token: str = "token") -> None:
    """Commit an announcement, as a worker does before it writes a range, and leave the group."""
    announcement = Announcement(first=first, last=last, token=token, writer="dead")
    await commit(broker, CommitOffset(first, announcement.metadata))


async def commit(broker: Broker, offset: CommitOffset) -> None:
    class Once:
        assigned_once = anyio.Event()

        async def revoked(self, partitions: frozenset[TopicPartition]) -> None: ...

        async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
            self.assigned_once.set()

    from kmr.kafka.connection import consumer_config

    consumer, listener = KafkaConsumer(consumer_config(settings_of(broker))), Once()
    await consumer.start(listener)
    try:
        await listener.assigned_once.wait()
        await consumer.commit({T0: offset})
    finally:
        await consumer.stop()


async def committed(broker: Broker) -> CommitOffset:
    async with connect_admin(connection_config(settings_of(broker))) as admin:
        return (await admin.list_group_offsets("g"))[T0]


async def test_an_announced_range_that_was_not_written_is_written_as_it_was_announced(
    broker: Broker, produce: Produce, sink: Sink
) -> None:
    await produce("t", [b"row"] * 20)
    await announce(broker, 0, 11)
    await work_through(Strategy(locate, [sink.writer(max_rows=4)]), settings_of(broker), 20)
    assert sink.offsets == list(range(20))
    sink.write(0, 11, "token")  # the dead worker's write arrives late
    assert sink.offsets == list(range(20))
    assert await committed(broker) == CommitOffset(20)


async def test_an_announced_range_that_was_written_is_not_doubled(
    broker: Broker, produce: Produce, sink: Sink
) -> None:
    await produce("t", [b"row"] * 20)
    sink.write(3, 11, "token")
    await announce(broker, 3, 11)
    await work_through(Strategy(locate, [sink.writer()]), settings_of(broker), 20)
    assert sink.offsets == list(range(3, 20))


async def test_a_range_whose_token_is_known_but_whose_rows_are_gone_is_written_again(
    broker: Broker, produce: Produce, sink: Sink
) -> None:
    await produce("t", [b"row"] * 10)
    sink.write(0, 4, "token")
    sink.client.command(f"ALTER TABLE {sink.table} DELETE WHERE 1 SETTINGS mutations_sync = 2")
    sink.write(0, 4, "token")
    assert sink.offsets == [], "the token was forgotten, so this shows nothing"
    await announce(broker, 0, 4)
    with capture_logs() as logs:
        await work_through(Strategy(locate, [sink.writer()]), settings_of(broker), 10)
    assert sink.offsets == list(range(10))
    assert [log["token"] for log in logs if "writing them again" in log["event"]] == ["token"]


async def reset(broker: Broker, *flags: str) -> None:
    """Run `kmr offsets reset`, in a thread, because the broker is on this event loop."""
    where = ("--group", "g", "--bootstrap-servers", broker.bootstrap_servers)
    command = ("offsets", "reset", *where, *flags)
    assert await to_thread.run_sync(run_command, command, entry_points(group=GROUP)) == 0


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
async def test_records_that_a_reset_reads_again_are_written_again(
    broker: Broker, produce: Produce, sink: Sink, delivery: str
) -> None:
    await produce("t", [b"row"] * 20)
    strategy = Strategy(locate, [sink.writer(max_rows=20, max_age=60.0, delivery=delivery)])
    await work_through(strategy, settings_of(broker), 20)
    for times in (2, 3):
        await reset(broker, "--to-earliest")
        await work_through(strategy, settings_of(broker), 20)
        assert sink.offsets == sorted([*range(20)] * times)
    assert (await committed(broker)).offset == 20


async def test_failed_records_that_a_reset_reads_again_are_written_again(
    broker: Broker, produce: Produce, sink: Sink
) -> None:
    await produce("t", [b"poison"] * 4)
    failed = ClickHouseWriter(
        sink.table, url=sink.url, columns=["topic", "partition", "offset"], max_rows=4
    )
    strategy = Strategy(locate, [MemoryWriter(Journal())], reduce_err=failed)
    await work_through(strategy, settings_of(broker), 4)
    await reset(broker, "--to-earliest")
    await work_through(strategy, settings_of(broker), 4)
    assert sink.offsets == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "by-its-parts"])
async def test_rows_that_the_table_drops_though_they_were_never_announced_end_the_worker(
    broker: Broker, produce: Produce, sink: Sink, *, counted: bool
) -> None:
    chain: list[Any] = [sink.writer(max_rows=20, max_age=60.0)]
    if not counted:
        sink.create(columns="`partition` UInt32, `records` UInt64")
        total = Aggregate(["partition"], {"records": ("*", "count")}, max_rows=20, max_age=60.0)
        chain = [total, sink.writer(max_rows=1)]
    await produce("t", [b"row"] * 20)
    strategy = Strategy(locate, chain)
    await work_through(strategy, settings_of(broker), 20)
    count = f"SELECT count() FROM {sink.table}"
    before = sink.client.command(count)
    await commit(broker, CommitOffset(0))  # as other tools do
    for _ in range(2):  # a supervisor starts it again
        worker = Worker(strategy, settings_of(broker))
        with pytest.raises(UnexpectedDuplicate, match=r"t-0\[0..19\] were not written"):
            with anyio.fail_after(60):
                await worker.run()
        assert worker.metrics.unexpected_duplicates.labels(chain_end(chain))._value.get() == 1
        assert await committed(broker) == CommitOffset(0), "it is announced, so it may be replayed"
    assert sink.client.command(count) == before
    await reset(broker, "--to-earliest")
    await work_through(strategy, settings_of(broker), 20)
    assert sink.client.command(count) == 2 * int(str(before))


def chain_end(chain: list[Any]) -> str:
    return f"reduce-{len(chain)}"


async def test_offsets_that_another_tool_moved_are_no_matter_where_the_table_was_emptied(
    broker: Broker, produce: Produce, sink: Sink
) -> None:
    await produce("t", [b"row"] * 20)
    strategy = Strategy(locate, [sink.writer(max_rows=20, max_age=60.0)])
    await work_through(strategy, settings_of(broker), 20)
    await commit(broker, CommitOffset(0))
    sink.client.command(f"TRUNCATE TABLE {sink.table}")  # it forgets its tokens too
    await work_through(strategy, settings_of(broker), 20)
    assert sink.offsets == list(range(20))


async def test_after_a_reset_a_worker_that_takes_over_an_announced_range_doubles_nothing(
    broker: Broker, produce: Produce, sink: Sink
) -> None:
    await produce("t", [b"row"] * 20)
    token = "g:t:0:3-11@7"
    sink.write(3, 11, token)
    announcement = Announcement(3, 11, token, "dead", generation=7)
    await commit(broker, CommitOffset(3, announcement.metadata))
    await work_through(Strategy(locate, [sink.writer()]), settings_of(broker), 20)
    assert sink.offsets == list(range(3, 20))
    assert await committed(broker) == CommitOffset(20, Generation(7).metadata)


async def test_an_upgrade_doubles_nothing_of_what_an_earlier_version_announced_and_wrote(
    broker: Broker, produce: Produce, sink: Sink
) -> None:
    await produce("t", [b"row"] * 20)
    sink.write(0, 11, "g:t:0:0-11")
    before = '{"kmr":1,"first":0,"last":11,"token":"g:t:0:0-11","writer":"w","rows":12}'
    await commit(broker, CommitOffset(0, before))
    await work_through(Strategy(locate, [sink.writer()]), settings_of(broker), 20)
    sink.write(0, 11, "g:t:0:0-11")  # late
    sink.write(12, 19, "g:t:0:12-19")  # the token that an earlier version would use
    assert sink.offsets == list(range(20))
    assert await committed(broker) == CommitOffset(20)


async def test_a_range_that_was_wholly_filtered_is_settled_without_a_write(
    broker: Broker, produce: Produce, sink: Sink
) -> None:
    await produce("t", [b"skip"] * 6 + [b"row"] * 4)
    await announce(broker, 0, 5)
    await work_through(Strategy(locate, [sink.writer()]), settings_of(broker), 10)
    assert sink.offsets == [6, 7, 8, 9]
    assert await committed(broker) == CommitOffset(10)


async def test_an_announced_range_goes_through_a_chain_as_one_and_counts_once(
    broker: Broker, produce: Produce, sink: Sink
) -> None:
    sink.create(columns="`partition` UInt32, `records` UInt64, `total` UInt64")
    await produce("t", [b"row"] * 20)
    await announce(broker, 0, 11)
    chain = [
        Aggregate(
            ["partition"],
            {"records": ("*", "count"), "total": ("offset", "sum")},
            max_rows=3,
            max_age=0.05,
        ),
        sink.writer(),
    ]
    await work_through(Strategy(locate, chain), settings_of(broker), 20)
    rows = sink.client.query(f"SELECT records, total FROM {sink.table}").result_rows
    assert (12, sum(range(12))) in rows
    assert [sum(column) for column in zip(*rows, strict=True)] == [20, sum(range(20))]


async def test_failed_records_of_a_replayed_range_are_kept_and_the_rest_goes_on(
    broker: Broker, produce: Produce, sink: Sink
) -> None:
    await produce("t", [b"poison", b"row", b"poison", b"row", b"poison"] * 4)
    await announce(broker, 0, 9)
    errors = Journal()
    strategy = Strategy(
        locate,
        [sink.writer(max_rows=3)],
        reduce_err=MemoryWriter(
            errors, max_rows=100, max_age=60.0
        ),  # flushed because it is awaited
    )
    await work_through(strategy, settings_of(broker), 20)
    assert sink.offsets == [n for n in range(20) if n % 5 in (1, 3)]
    assert sorted(row["offset"] for row in errors.rows()) == [
        n for n in range(20) if n % 5 % 2 == 0
    ]


async def test_a_range_that_is_no_longer_on_the_broker_stops_the_worker_or_is_passed(
    broker: Broker, produce: Produce, sink: Sink
) -> None:
    await produce("t", [b"row"] * 20)
    await announce(broker, 3, 11)
    await delete_below(broker, 8)
    strategy = Strategy(locate, [sink.writer()])
    with pytest.raises(OffsetOutOfRange) as caught:
        await Worker(strategy, settings_of(broker)).run()
    assert "t-0[3..11] was announced" in str(caught.value)
    assert "on_out_of_range" in str(caught.value)
    await work_through(strategy, settings_of(broker, on_out_of_range="earliest"), 20)
    assert sink.offsets == list(range(8, 20))


async def delete_below(broker: Broker, offset: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    try:
        await admin.delete_records({T0: RecordsToDelete(offset)})
    finally:
        await admin.close()


async def test_an_announcement_of_a_newer_version_is_one_message(
    broker: Broker, produce: Produce, sink: Sink
) -> None:
    await produce("t", [b"row"])
    await commit(broker, CommitOffset(0, '{"kmr":2,"first":0,"until":9}'))
    with pytest.raises(ConsumerError, match="newer kmr"):
        await Worker(Strategy(locate, [sink.writer()]), settings_of(broker)).run()


async def test_a_strategy_with_another_delivery_says_that_it_may_double_the_range(
    broker: Broker, produce: Produce, sink: Sink
) -> None:
    await produce("t", [b"row"] * 5)
    await announce(broker, 0, 3)
    strategy = Strategy(locate, [sink.writer(delivery="at-least-once")])
    with capture_logs() as logs:
        await work_through(strategy, settings_of(broker), 5)
    assert [(log["first"], log["last"]) for log in logs if "exactly-once" in log["event"]] == [
        (0, 3)
    ]


async def test_the_announcement_is_committed_before_the_write_and_gone_after_it(
    broker: Broker, produce: Produce, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[CommitOffset] = []
    write = ClickHouseWriter.flush

    async def flush(writer: ClickHouseWriter, told: Write) -> Any:
        seen.append(await committed(broker))
        return await write(writer, told)

    monkeypatch.setattr(ClickHouseWriter, "flush", flush)
    await produce("t", [b"row"] * 10)
    strategy = Strategy(locate, [sink.writer(max_rows=5, max_age=60.0)])
    await work_through(strategy, settings_of(broker), 10)
    assert [entry.offset for entry in seen] == [0, 5]
    assert '"first":5,"last":9,"token":"g:t:0:5-9"' in seen[1].metadata
    assert await committed(broker) == CommitOffset(10)


async def test_at_most_once_commits_before_it_writes(broker: Broker, produce: Produce) -> None:
    await produce("t", [b"row"] * 4)
    journal = Journal(hold=anyio.Event())
    strategy = Strategy(locate, [MemoryWriter(journal, max_rows=4)], delivery="at-most-once")
    async with working(strategy, settings_of(broker)):
        await journal.until(lambda journal: journal.attempts == 1)
        found = await committed(broker)
        assert found.offset == 4
        assert found.metadata.startswith('{"kmr":2,"generation":')
        assert journal.count == 0
        assert journal.hold is not None
        journal.hold.set()
    assert journal.count == 4


async def test_at_most_once_never_repeats_a_write_that_failed(
    broker: Broker, produce: Produce
) -> None:
    await produce("t", [b"row"] * 4)
    journal, errors = Journal(), Journal()
    journal.outcomes.append(OSError("written or not, who knows"))
    strategy = Strategy(
        locate,
        [MemoryWriter(journal, max_rows=4)],
        reduce_err=MemoryWriter(errors, max_rows=4),
        delivery="at-most-once",
    )
    async with working(strategy, settings_of(broker)):
        await errors.until(lambda errors: errors.count == 4)
    assert journal.attempts == 1


async def test_at_most_once_never_repeats_a_write_that_may_have_happened(
    broker: Broker, produce: Produce
) -> None:
    """The sink writes, and then it does not know."""
    await produce("t", [b"row"] * 4)
    journal, errors = Journal(), Journal()

    class Doubtful(MemoryWriter):
        async def flush(self, write: Write = NEW) -> None:
            await super().flush()
            raise Retry("the answer was lost", after=0.0)

    strategy = Strategy(
        locate,
        [Doubtful(journal, max_rows=4)],
        reduce_err=MemoryWriter(errors, max_rows=4),
        delivery="at-most-once",
    )
    async with working(strategy, settings_of(broker)):
        await errors.until(lambda errors: errors.count == 4)
    assert journal.count == 4
    reasons = {row["reason"] for row in errors.rows()}
    assert reasons == {"these rows may have been written: the answer was lost"}


async def test_at_most_once_tries_again_what_was_certainly_not_written(
    broker: Broker, produce: Produce
) -> None:
    await produce("t", [b"row"] * 4)
    journal = Journal()
    journal.outcomes.extend([Retry("busy", after=0.0, may_double=False)] * 2)
    strategy = Strategy(locate, [MemoryWriter(journal, max_rows=4)], delivery="at-most-once")
    async with working(strategy, settings_of(broker)):
        await journal.until(lambda journal: journal.count == 4)
    assert journal.attempts == 3


def test_a_sink_that_cannot_recognise_repetitions_is_refused_for_exactly_once() -> None:
    with pytest.raises(StrategyError, match="cannot recognise a repeated write"):
        Strategy(locate, [MemoryWriter(Journal())], delivery="exactly-once")


async def test_a_table_without_deduplication_is_refused_with_the_statement_that_mends_it(
    broker: Broker, produce: Produce, sink: Sink
) -> None:
    sink.create(window=0)
    strategy = Strategy(locate, [sink.writer(delivery="exactly-once")])
    with pytest.raises(StrategyError, match=f"ALTER TABLE `default`.`{sink.table}` MODIFY SETTING"):
        await Worker(strategy, settings_of(broker)).run()
    with pytest.raises(StrategyError, match="cannot provide it"):
        await Worker(
            Strategy(locate, [sink.writer()], delivery="exactly-once"), settings_of(broker)
        ).run()
    await produce("t", [b"row"] * 3)
    await work_through(strategy, settings_of(broker, prepare_table=True), 3)
    definition = str(sink.client.command(f"SHOW CREATE TABLE {sink.table}"))
    assert "non_replicated_deduplication_window = 10000" in definition
    assert sink.offsets == [0, 1, 2]


async def test_a_table_without_deduplication_gets_each_row_at_least_once_and_a_warning(
    broker: Broker, produce: Produce, sink: Sink
) -> None:
    sink.create(window=0)
    await produce("t", [b"row"] * 3)
    with capture_logs() as logs:
        await work_through(Strategy(locate, [sink.writer()]), settings_of(broker), 3)
    assert [log["event"] for log in logs if log["log_level"] == "warning"] == [
        "inserts may be doubled"
    ]
    assert sink.offsets == [0, 1, 2]
    found = await committed(broker)
    assert (found.offset, found.metadata[:22]) == (3, '{"kmr":2,"generation":')
