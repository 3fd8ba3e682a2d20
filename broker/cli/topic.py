"""`kmr broker topic`: create, list, describe, alter and delete topics of any Kafka cluster."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from cyclopts import App, Parameter

from broker.cli.admin import open_admin
from broker.cli.connection import Connection
from broker.cli.errors import UsageError, runs
from broker.cli.text import columns, pairs, required, say, say_json, show_topic

__all__ = ["app"]

app = App(name="topic", help="Create, list, describe, alter and delete topics.")

Json = Annotated[bool, Parameter("--json", negative=(), show_default=False, help="Print JSON.")]


@app.command
@runs
async def create(
    *topics: str,
    partitions: int | None = None,
    replication_factor: int | None = None,
    config: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    if_not_exists: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    connection: Connection | None = None,
) -> None:
    """Create topics.

    Parameters
    ----------
    topics
        Names of the topics.
    partitions
        Number of partitions; the broker's default if not given.
    replication_factor
        Copies of each partition; the broker's default if not given. The bundled broker keeps one.
    config
        A setting of the topics as name=value, retention.ms=3600000 say; may be repeated.
    if_not_exists
        Leave topics alone that exist already.
    """
    settings = pairs(config, "--config")
    async with open_admin((connection or Connection()).client_settings()) as admin:
        existing = await admin.topics() if if_not_exists else {}
        for name in required(topics, "topic"):
            if name in existing:
                say(f"{name}: exists already, with {existing[name]} partitions")
                continue
            await admin.create_topic(
                name,
                partitions=-1 if partitions is None else partitions,
                replication_factor=-1 if replication_factor is None else replication_factor,
                config=settings,
            )
            say(f"{name}: created")


@app.command(name="list")
@runs
async def list_topics(
    *,
    internal: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    as_json: Json = False,
    connection: Connection | None = None,
) -> None:
    """List the topics and how many partitions they have.

    Parameters
    ----------
    internal
        Also those that belong to the broker.
    """
    async with open_admin((connection or Connection()).client_settings()) as admin:
        topics = await admin.topics(internal=internal)
    if as_json:
        say_json([{"name": name, "partitions": count} for name, count in topics.items()])
    else:
        say(*columns(["TOPIC", "PARTITIONS"], topics.items()))


@app.command
@runs
async def describe(
    *topics: str, as_json: Json = False, connection: Connection | None = None
) -> None:
    """Show the settings of topics, and the offsets of each partition.

    START is the first offset that can be read, END the one that the next record will get.
    """
    async with open_admin((connection or Connection()).client_settings()) as admin:
        described = [await admin.describe_topic(name) for name in required(topics, "topic")]
    if as_json:
        say_json([asdict(topic) for topic in described])
    else:
        for topic in described:
            say(*show_topic(topic))


@app.command
@runs
async def alter(
    *topics: str,
    partitions: int | None = None,
    config: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    delete_config: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    connection: Connection | None = None,
) -> None:
    """Change the settings of topics, or add partitions; both take effect at once.

    Parameters
    ----------
    topics
        Names of the topics.
    partitions
        Number of partitions to have from now on; there can only be more. Records of a key may go to
        another partition than before.
    config
        A setting of the topics as name=value; may be repeated.
    delete_config
        Name of a setting that falls back to the broker's default; may be repeated.
    """
    settings = pairs(config, "--config")
    if partitions is None and not settings and not delete_config:
        raise UsageError("nothing to alter: give --config, --delete-config or --partitions")
    async with open_admin((connection or Connection()).client_settings()) as admin:
        for name in required(topics, "topic"):
            if settings or delete_config:
                await admin.alter_topic(name, settings, delete=delete_config)
            if partitions is not None:
                await admin.add_partitions(name, partitions)
            say(f"{name}: altered")


@app.command
@runs
async def delete(*topics: str, connection: Connection | None = None) -> None:
    """Delete topics with all their records."""
    async with open_admin((connection or Connection()).client_settings()) as admin:
        for name in required(topics, "topic"):
            await admin.delete_topic(name)
            say(f"{name}: deleted")
