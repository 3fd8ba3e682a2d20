"""The rows of a redirected strategy are found again in files and topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kmr.broker.client import BatchProducer
from kmr.chaos.redirect import SOURCE, Places
from kmr.chaos.sinks import read_errors, read_sink
from kmr.chaos.verdict import Found
from kmr.record import TopicPartition

if TYPE_CHECKING:
    from pathlib import Path

    from kmr.testing import StartBroker

AT = TopicPartition("t", 0)


async def test_rows_of_finished_files_are_counted(tmp_path: Path) -> None:
    for name, sources in {
        "one.parquet": ["t:0:1", "t:0:1"],
        "day=1/two.parquet": ["t:0:2"],
        "day=1/.three.parquet": ["t:0:3"],
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({SOURCE: sources}), tmp_path / name)
    found = await read_sink("parquet", Places(files=str(tmp_path)), "")
    assert found == Found({(AT, 1): 2, (AT, 2): 1}, {})


async def test_rows_of_topics_are_counted_by_their_header_and_errors_by_their_columns(
    start_broker: StartBroker,
) -> None:
    broker = await start_broker(default_partitions=2)
    places, servers = Places(), broker.bootstrap_servers
    async with BatchProducer(servers, places.rows, acks=1) as producer:
        await producer.send([b"{}", b"{}"], headers=[(SOURCE, b"t:0:5")])
        await producer.send([b"{}"], headers=[("other", b"x"), (SOURCE, b"t:0:6")])
    error = msgspec.json.encode({"topic": "t", "partition": 0, "offset": 7, "reason": "bad"})
    async with BatchProducer(servers, places.errors, acks=1) as producer:
        await producer.send([error, error])
    assert await read_sink("kafka", places, servers) == Found({(AT, 5): 2, (AT, 6): 1}, {})
    assert await read_errors(places, servers) == Found({(AT, 7): 2}, {})
