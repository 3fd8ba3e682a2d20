"""`kmr broker txn`: transactions of any Kafka cluster, and the end of those that hang."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from aiokafka import TopicPartition
from cyclopts import App, Parameter

from broker.cli.admin import open_admin
from broker.cli.connection import Connection
from broker.cli.errors import CommandError, runs
from broker.cli.quantities import show_seconds
from broker.cli.text import columns, required, say, say_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.cli.admin import Admin
    from broker.cli.transactions import OpenTransaction

__all__ = ["app"]

app = App(name="txn", help="List and describe transactions; find and abort those that hang.")

Json = Annotated[bool, Parameter("--json", negative=(), show_default=False, help="Print JSON.")]


@app.command(name="list")
@runs
async def list_transactions(*, as_json: Json = False, connection: Connection | None = None) -> None:
    """List the transactional ids that the cluster knows."""
    async with open_admin((connection or Connection()).client_settings()) as admin:
        found = await admin.transactions.known()
    header = ("TRANSACTIONAL ID", "PRODUCER", "STATE")
    if as_json:
        names = ("transactional_id", "producer_id", "state")
        say_json([dict(zip(names, each, strict=True)) for each in found])
    elif found:
        say(*columns(header, found))


@app.command
@runs
async def describe(
    *transactional_ids: str, as_json: Json = False, connection: Connection | None = None
) -> None:
    """Show the newest transaction of transactional ids, and the partitions that it is in."""
    async with open_admin((connection or Connection()).client_settings()) as admin:
        described = [
            await admin.transactions.describe(each)
            for each in required(transactional_ids, "transactional id")
        ]
    if as_json:
        say_json([asdict(each) for each in described])
        return
    for each in described:
        open_for = f", open for {_age(each.started_ms)}" if each.partitions else ""
        say(
            f"{each.transactional_id}: {each.state}{open_for}, producer {each.producer_id}"
            f" epoch {each.producer_epoch}, timeout {show_seconds(each.timeout_ms / 1000)}",
            *(f"  {tp.topic}-{tp.partition}" for tp in sorted(each.partitions)),
        )


@app.command
@runs
async def hanging(
    *topics: str, as_json: Json = False, connection: Connection | None = None
) -> None:
    """Find transactions that are open in a partition and that no coordinator knows of.

    Consumers of committed records wait for them for ever; `kmr broker txn abort` ends them.

    Parameters
    ----------
    topics
        Where to look; all topics if none is named.
    """
    async with open_admin((connection or Connection()).client_settings()) as admin:
        found = await admin.transactions.hanging_in(await _partitions(admin, topics))
    if as_json:
        say_json([asdict(each) for each in found])
    elif found:
        say(*_table(found))


@app.command
@runs
async def abort(
    topic: str, partition: int, *, start_offset: int, connection: Connection | None = None
) -> None:
    """Abort a transaction in one partition, whatever its coordinator knows of it.

    Its records will not be seen by consumers of committed records. Use it for what `hanging` shows: a
    producer that is still at work with this transaction loses what it has written to the partition.

    Parameters
    ----------
    topic
        Where it hangs.
    partition
        Number of the partition.
    start_offset
        First offset of the transaction, as `hanging` shows it.
    """
    where = TopicPartition(topic, partition)
    async with open_admin((connection or Connection()).client_settings()) as admin:
        transactions = await admin.transactions.open_in([where])
        chosen = [each for each in transactions if each.start_offset == start_offset]
        if not chosen:
            begins = ", ".join(str(each.start_offset) for each in transactions)
            there = f"those that are open begin at {begins}" if begins else "none is open"
            raise CommandError(
                f"{topic}-{partition}: no transaction begins at {start_offset}; {there}"
            )
        await admin.transactions.abort(chosen[0])
    say(f"{topic}-{partition}: aborted the transaction that began at {start_offset}")


async def _partitions(admin: Admin, topics: Iterable[str]) -> list[TopicPartition]:
    existing = await admin.topics()
    missing = [topic for topic in topics if topic not in existing]
    if missing:
        raise CommandError(f"topic {missing[0]}: does not exist")
    return [
        TopicPartition(topic, index)
        for topic in topics or existing
        for index in range(existing[topic])
    ]


def _table(transactions: Iterable[OpenTransaction]) -> list[str]:
    return columns(
        ["TOPIC", "PARTITION", "START", "PRODUCER", "EPOCH", "SILENT FOR"],
        [
            (
                each.partition.topic,
                each.partition.partition,
                each.start_offset,
                each.producer_id,
                each.producer_epoch,
                _age(each.last_timestamp_ms),
            )
            for each in transactions
        ],
    )


def _age(since_ms: int) -> str:
    return f"{max(0, round(time.time() - since_ms / 1000))}s"
