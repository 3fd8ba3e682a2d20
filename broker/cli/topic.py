"""`kmr broker topic`: create, list, describe, alter and delete topics of any Kafka cluster."""

from __future__ import annotations

from cyclopts import App

from .client_command import ClientFlags, client_command, client_settings
from .cluster_admin import TopicInfo, open_admin
from .terminal import AsJson, Flag, Texts, UsageError, columns, pairs, required, say, show

app = App(name="topic")


@app.command
@client_command
async def create(
    *topics: str,
    partitions: int | None = None,
    replication_factor: int | None = None,
    config: Texts = (),
    if_not_exists: Flag = False,
    client: ClientFlags | None = None,
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
        A setting of the topics as name=value, for example retention.ms=3600000; may be repeated.
    if_not_exists
        Do nothing for topics that exist.
    """
    settings = pairs(config, "--config")
    async with open_admin(client_settings(client)) as admin:
        existing = await admin.topics() if if_not_exists else {}
        for name in required(topics, "topic"):
            if name in existing:
                say(f"{name}: already exists, with {existing[name]} partitions")
                continue
            await admin.create_topic(
                name,
                partitions=-1 if partitions is None else partitions,
                replication_factor=-1 if replication_factor is None else replication_factor,
                config=settings,
            )
            say(f"{name}: created")


@app.command(name="list")
@client_command
async def list_topics(
    *, internal: Flag = False, as_json: AsJson = False, client: ClientFlags | None = None
) -> None:
    """List the topics and how many partitions they have.

    Parameters
    ----------
    internal
        Include the broker's internal topics.
    """
    async with open_admin(client_settings(client)) as admin:
        topics = await admin.topics(internal=internal)
    listed = [{"name": name, "partitions": count} for name, count in topics.items()]
    show(listed, columns(["TOPIC", "PARTITIONS"], topics.items()), as_json=as_json)


@app.command
@client_command
async def describe(
    *topics: str, as_json: AsJson = False, client: ClientFlags | None = None
) -> None:
    """Show the settings of topics, and the offsets of each partition.

    START is the first offset that can be read; END is the offset of the next record.
    """
    async with open_admin(client_settings(client)) as admin:
        described = [await admin.describe_topic(name) for name in required(topics, "topic")]
    lines = (line for topic in described for line in show_topic(topic))
    show(described, lines, as_json=as_json)


@app.command
@client_command
async def alter(
    *topics: str,
    partitions: int | None = None,
    config: Texts = (),
    delete_config: Texts = (),
    client: ClientFlags | None = None,
) -> None:
    """Change the settings of topics, or add partitions; both take effect at once.

    Parameters
    ----------
    topics
        Names of the topics.
    partitions
        New number of partitions, which can only grow. Later records of a key may go to another
        partition than earlier ones.
    config
        A setting of the topics as name=value; may be repeated.
    delete_config
        Name of a setting to reset to the broker's default; may be repeated.
    """
    settings = pairs(config, "--config")
    if partitions is None and not settings and not delete_config:
        raise UsageError("nothing to alter: give --config, --delete-config or --partitions")
    async with open_admin(client_settings(client)) as admin:
        for name in required(topics, "topic"):
            if settings or delete_config:
                await admin.alter_topic(name, settings, delete=delete_config)
            if partitions is not None:
                await admin.add_partitions(name, partitions)
            say(f"{name}: altered")


@app.command
@client_command
async def delete(*topics: str, client: ClientFlags | None = None) -> None:
    """Delete topics with all their records."""
    async with open_admin(client_settings(client)) as admin:
        for name in required(topics, "topic"):
            await admin.delete_topic(name)
            say(f"{name}: deleted")


def show_topic(topic: TopicInfo) -> list[str]:
    """Return a topic's settings and offsets as lines of text."""
    records = sum(each.end - each.start for each in topic.partitions)
    lines = [f"{topic.name}: {len(topic.partitions)} partitions, {records} offsets in use"]
    lines += [f"  {name}={value}" for name, value in sorted(topic.config.items())]
    return lines + columns(
        ["PARTITION", "LEADER", "START", "END", "COUNT"],
        [(p.index, p.leader, p.start, p.end, p.end - p.start) for p in topic.partitions],
    )
