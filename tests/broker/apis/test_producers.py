from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from kio.schema.errors import ErrorCode

from broker import Broker
from broker.producer_ids import ProducerIds

Connect = Callable[[Broker], Awaitable[Any]]
Start = Callable[..., Awaitable[Broker]]
INIT_PRODUCER_ID = 22


@pytest.mark.parametrize("version", range(5))
async def test_every_producer_gets_an_id_of_its_own(
    broker: Broker, connect: Connect, version: int
) -> None:
    client = await connect(broker)
    responses = [await client.call(INIT_PRODUCER_ID, version, transactional_id=None) for _ in "123"]
    assert {each.error_code for each in responses} == {ErrorCode.none}
    assert {each.producer_epoch for each in responses} == {0}
    assert len({each.producer_id for each in responses}) == 3


async def test_no_id_is_handed_out_when_it_cannot_be_reserved(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: ProducerIds) -> int:
        raise OSError("no space left")

    monkeypatch.setattr(ProducerIds, "next", fail)
    client = await connect(broker)
    response = await client.call(INIT_PRODUCER_ID, 4, transactional_id=None)
    assert response.error_code is ErrorCode.kafka_storage_error


async def test_an_idempotent_producer_goes_on_after_a_restart_of_the_broker(
    start: Start, broker: Broker
) -> None:
    port = int(broker.bootstrap_servers.rpartition(":")[2])
    producer = AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, enable_idempotence=True, retry_backoff_ms=10
    )
    await producer.start()
    offsets = [(await producer.send_and_wait("t", b"a", partition=0)).offset for _ in "123"]
    await broker.__aexit__(None, None, None)
    await start(port=port)
    offsets += [(await producer.send_and_wait("t", b"b", partition=0)).offset for _ in "123"]
    await producer.stop()
    assert offsets == list(range(6))
