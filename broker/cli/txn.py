"""`kmr broker txn`: list and describe transactions of any Kafka cluster; find and abort hanging ones."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aiokafka import TopicPartition
from cyclopts import App

from kmr.config.schema import SECONDS, show_quantity

from .client_command import ClientFlags, client_command, client_settings
from .cluster_admin import open_admin
from .terminal import AsJson, CommandError, columns, required, say, show

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .cluster_admin import OpenTransaction, TransactionInfo

__all__ = ["app"]

app = App(name="txn")


@app.command(name="list")
@client_command
async def list_transactions(*, as_json: AsJson = False, client: ClientFlags | None = None) -> None:
    """List the transactional ids that the cluster knows."""
    async with open_admin(client_settings(client)) as admin:
        found = await admin.transactions()
    names = ("transactional_id", "producer_id", "state")
    listed = [dict(zip(names, each, strict=True)) for each in found]
    table = columns(["TRANSACTIONAL ID", "PRODUCER", "STATE"], found) if found else []
    show(listed, table, as_json=as_json)


@app.command
@client_command
async def describe(
    *transactional_ids: str, as_json: AsJson = False, client: ClientFlags | None = None
) -> None:
    """Show the newest transaction of transactional ids, and its partitions."""
    async with open_admin(client_settings(client)) as admin:
        described = [
            await admin.describe_transaction(each)
            for each in required(transactional_ids, "transactional id")
        ]
    show(described, (line for each in described for line in _lines(each)), as_json=as_json)


@app.command
@client_command
async def hanging(*topics: str, as_json: AsJson = False, client: ClientFlags | None = None) -> None:
    """Find transactions that are open in a partition but unknown to every coordinator.

    They block read_committed consumers forever; `kmr broker txn abort` ends them.

    Parameters
    ----------
    topics
        Topics to search; default: all.
    """
    async with open_admin(client_settings(client)) as admin:
        partitions = await admin.partitions(topics or await admin.topics())
        found = await admin.hanging_transactions(partitions)
    show(found, _table(found) if found else [], as_json=as_json)


@app.command
@client_command
async def abort(
    topic: str, partition: int, *, start_offset: int, client: ClientFlags | None = None
) -> None:
    """Abort a transaction in one partition, without asking its coordinator.

    read_committed consumers will skip its records. Use this only for transactions that
    `kmr broker txn hanging` shows: a producer that still uses the transaction loses its records in the
    partition.

    Parameters
    ----------
    topic
        Topic of the hanging transaction.
    partition
        Number of the partition.
    start_offset
        First offset of the transaction, as `kmr broker txn hanging` shows it.
    """
    where = TopicPartition(topic, partition)
    async with open_admin(client_settings(client)) as admin:
        transactions = await admin.open_transactions([where])
        chosen = [each for each in transactions if each.start_offset == start_offset]
        if not chosen:
            starts = ", ".join(str(each.start_offset) for each in transactions)
            there = f"open transactions begin at {starts}" if starts else "none is open"
            raise CommandError(
                f"{topic}-{partition}: no transaction begins at {start_offset}; {there}"
            )
        await admin.abort_transaction(chosen[0])
    say(f"{topic}-{partition}: aborted the transaction that began at {start_offset}")


def _lines(described: TransactionInfo) -> list[str]:
    open_for = f", open for {_age(described.started_ms)}" if described.partitions else ""
    timeout = show_quantity(described.timeout_ms / 1000, SECONDS)
    head = (
        f"{described.transactional_id}: {described.state}{open_for}, producer {described.producer_id}"
        f" epoch {described.producer_epoch}, timeout {timeout}"
    )
    return [
        head,
        *(f"  {tp.topic}-{tp.partition}" for tp in sorted(described.partitions)),
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
