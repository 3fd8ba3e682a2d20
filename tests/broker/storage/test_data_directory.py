"""The lock, the format, the cluster id and the producer ids of a data directory."""

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from kmr.broker import Broker, BrokerError, BrokerSettings
from kmr.broker.log.results import LogCorrupt
from kmr.broker.storage.data_directory import DataDirectory, ProducerIds

Start = Callable[..., Awaitable[Broker]]


async def produce(broker: Broker, topic: str, *values: bytes, **options: Any) -> list[int]:
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, **options)
    await producer.start()
    try:
        sent = [await producer.send(topic, value, partition=0) for value in values]
        return [record.offset for record in await asyncio.gather(*sent)]
    finally:
        await producer.stop()


async def test_the_cluster_id_stays_the_same(tmp_path: Path) -> None:
    settings = BrokerSettings(data_dir=tmp_path, port=0)
    ids = []
    for _ in range(2):
        async with Broker(settings):
            ids.append((tmp_path / "meta.json").read_bytes())
    assert ids[0] == ids[1]


async def test_the_secret_stays_the_same_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path / "data")
    first.close(clean=True)
    second = DataDirectory(tmp_path / "data")
    second.close(clean=True)
    other = DataDirectory(tmp_path / "other")
    other.close(clean=True)
    assert first.secret == second.secret != other.secret
    assert stat.S_IMODE((tmp_path / "data" / "secret").stat().st_mode) == 0o600


async def test_a_second_broker_on_the_same_directory_is_refused(
    broker: Broker, start: Start
) -> None:
    with pytest.raises(BrokerError, match=rf"in use by another broker \(process {os.getpid()}\)"):
        await start()
    assert await produce(broker, "t", b"a") == [0]


async def test_a_data_directory_that_cannot_be_made_is_named(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BrokerError, match="cannot be used"):
        await start(data_dir=tmp_path / "file" / "data")


@pytest.mark.parametrize(
    ("meta", "message"),
    [(b"{", "meta.json cannot be read"), (b'{"format":9,"cluster_id":"x"}', "format 9")],
)
async def test_a_directory_of_another_format_is_refused(
    start: Start, tmp_path: Path, meta: bytes, message: str
) -> None:
    (tmp_path / "meta.json").write_bytes(meta)
    for _ in range(2):  # the lock is released
        with pytest.raises(BrokerError, match=message):
            await start(data_dir=tmp_path)


async def next_id(ids: ProducerIds) -> int:
    await ids.reserve()
    return ids.next()


async def test_ids_are_unique_over_restarts_and_kills(tmp_path: Path) -> None:
    path = tmp_path / "producer-ids"
    seen: list[int] = []
    for count in (1, 2500, 0, 999, 1):
        ids = ProducerIds(path)  # nothing closes it: every restart is like one after a kill
        seen += [await next_id(ids) for _ in range(count)]
    assert len(set(seen)) == len(seen) == 3501
    assert min(seen) == 0


async def test_a_damaged_file_is_refused_instead_of_handing_out_ids_twice(tmp_path: Path) -> None:
    path = tmp_path / "producer-ids"
    await ProducerIds(path).reserve()
    path.write_bytes(path.read_bytes().replace(b"1", b"0", 1))
    with pytest.raises(LogCorrupt, match="producer-ids is corrupt"):
        ProducerIds(path)


async def test_an_id_that_cannot_be_reserved_is_not_handed_out(tmp_path: Path) -> None:
    ids = ProducerIds(tmp_path / "missing" / "producer-ids")
    with pytest.raises(FileNotFoundError):
        await ids.reserve()
    with pytest.raises(RuntimeError, match="no producer id is reserved"):
        ids.next()


async def test_callers_that_come_at_once_get_an_id_each(tmp_path: Path) -> None:
    ids = ProducerIds(tmp_path / "producer-ids")
    given = await asyncio.gather(*(next_id(ids) for _ in range(1500)))
    assert len(set(given)) == 1500


async def test_without_the_file_no_id_that_a_log_knows_is_handed_out(tmp_path: Path) -> None:
    path = tmp_path / "producer-ids"
    made_up = 2**63 - 1
    assert await next_id(ProducerIds(path, used=[7, 1500, made_up])) == 1501
    assert await next_id(ProducerIds(path, used=[9000])) == 2501  # the file knows better
