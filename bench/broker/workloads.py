"""The workloads: each runs on one server and records its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.broker.measuring import Figures, fresh_topic, librdkafka, raw, run

if TYPE_CHECKING:
    from bench.broker.payload import Codec
    from bench.broker.servers import Server

_PARTITIONS = 4


async def warm_up(server: Server) -> None:
    """Many small requests, so that the JVM compiles the code that it calls often."""
    await raw_throughput(Figures(), server, size=100, per_batch=30, records=1_000_000)


async def throughput(
    figures: Figures, server: Server, *, size: int, acks: str, codec: Codec, records: int
) -> None:
    """One librdkafka producer, then, where it may differ, one consumer."""
    topic = fresh_topic(server, _PARTITIONS)
    producer = librdkafka(
        "producer", server, topics=[topic], records=records, size=size, acks=acks, codec=codec
    )
    figures.add(f"produce, acks={acks}, {codec}", server, await run(server, [producer]))
    if acks == "1":
        consumer = librdkafka(
            "consumer", server, topics=[topic], partitions=list(range(_PARTITIONS)), records=records
        )
        figures.add(f"consume, {codec}", server, await run(server, [consumer]))
    server.delete(topic)


async def raw_throughput(
    figures: Figures, server: Server, *, size: int, per_batch: int, records: int
) -> None:
    """One producer, then one consumer, on the protocol itself."""
    topic = fresh_topic(server, _PARTITIONS)
    name = f"batches of {per_batch}"
    partitions = list(range(_PARTITIONS))
    producer = raw(
        "producer",
        server,
        topic=topic,
        partitions=partitions,
        records=records,
        size=size,
        per_batch=per_batch,
    )
    produced = await run(server, [producer])
    figures.add(f"produce, {name}", server, produced)
    consumer = raw(
        "consumer",
        server,
        topic=topic,
        offsets=dict.fromkeys(partitions, 0),
        records=produced.records,
    )
    figures.add(f"consume, {name}", server, await run(server, [consumer]))
    server.delete(topic)


async def round_trips(figures: Figures, server: Server, *, count: int) -> None:
    """One record a request, acks=1: by the protocol itself, and by librdkafka."""
    topic = fresh_topic(server, 1)
    for name, client in (("raw", raw), ("librdkafka", librdkafka)):
        trips = client("round_trips", server, topic=topic, size=100, count=count)
        figures.add(f"round trip, {name}", server, await run(server, [trips]))
    server.delete(topic)


async def connections(figures: Figures, server: Server, *, number: int, count: int) -> None:
    """Requests of 30 records, one on its way on each connection."""
    topic = fresh_topic(server, _PARTITIONS)
    client = raw(
        "connections",
        server,
        topic=topic,
        partitions=_PARTITIONS,
        size=100,
        per_batch=30,
        connections=number,
        count=count,
    )
    figures.add(f"{number} connections", server, await run(server, [client]))
    server.delete(topic)


async def waiting(figures: Figures, server: Server, *, partitions: int, count: int) -> None:
    """Fetches from partitions without records, with a fetch session and without."""
    topic = fresh_topic(server, partitions)
    for name, session in (("all partitions each time", False), ("fetch session", True)):
        client = raw(
            "waiting", server, topic=topic, partitions=partitions, count=count, session=session
        )
        figures.add(name, server, await run(server, [client]))
    server.delete(topic)


async def crowd(
    figures: Figures, server: Server, *, records: int, per_batch: int, path: str, members: int = 10
) -> None:
    """So many producers and consumers at the same time, as processes, and as many partitions."""
    topic = fresh_topic(server, members)
    share = records // members
    partitions = list(range(members))
    clients = []
    if path == "raw":
        share -= share % (per_batch * members)  # the same number for each partition
        for number in partitions:
            turns = partitions[number:] + partitions[:number]
            clients += [
                raw(
                    "producer",
                    server,
                    topic=topic,
                    partitions=turns,
                    records=share,
                    size=100,
                    per_batch=per_batch,
                ),
                raw("consumer", server, topic=topic, offsets={number: 0}, records=share),
            ]
    else:
        for number in partitions:
            clients += [
                librdkafka(
                    "producer",
                    server,
                    topics=[topic],
                    records=share,
                    size=100,
                    acks="1",
                    per_batch=per_batch,
                    partition=number,
                ),
                librdkafka("consumer", server, topics=[topic], partitions=[number], records=share),
            ]
    name = f"{path}, batches of {per_batch}"
    figures.add(name, server, await run(server, clients))
    server.delete(topic)


async def many_partitions(
    figures: Figures, server: Server, *, topics: int, partitions: int, records: int
) -> None:
    """One librdkafka producer and then one consumer for all partitions of several topics."""
    names = [fresh_topic(server, partitions) for _ in range(topics)]
    name = f"{topics} topics of {partitions} partitions"
    producer = librdkafka("producer", server, topics=names, records=records, size=100)
    figures.add(f"produce, {name}", server, await run(server, [producer]))
    consumer = librdkafka(
        "consumer", server, topics=names, partitions=list(range(partitions)), records=records
    )
    figures.add(f"consume, {name}", server, await run(server, [consumer]))
    for each in names:
        server.delete(each)
