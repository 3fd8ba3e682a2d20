"""The commands of the console, as cyclopts reads them; their docstrings are its help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from broker.cli.errors import UsageError
from broker.cli.formats import formatter
from broker.cli.text import columns, pairs, required, say, show_group, show_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.cli.session import Session

__all__ = ["Commands"]


class Commands:
    """One method for each command."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def all(self) -> list[Callable[..., Any]]:
        """In the order of the help."""
        return [
            self.topics,
            self.create,
            self.delete,
            self.describe,
            self.groups,
            self.group,
            self.send,
            self.subscribe,
            self.unsubscribe,
            self.join,
            self.leave,
            self.poll,
            self.seek,
            self.status,
        ]

    async def topics(self) -> None:
        """List the topics."""
        topics = await self._session.admin.topics()
        say(*(columns(["TOPIC", "PARTITIONS"], topics.items()) if topics else ["no topics"]))

    async def create(
        self,
        topic: str,
        /,
        *,
        partitions: int = -1,
        config: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    ) -> None:
        """Create a topic.

        Parameters
        ----------
        partitions
            How many; -1 leaves it to the broker.
        config
            A setting of the topic as name=value; may be repeated.
        """
        await self._session.admin.create_topic(
            topic, partitions=partitions, config=pairs(config, "--config")
        )
        say(f"{topic}: created")

    async def delete(self, *topics: str) -> None:
        """Delete topics with all their records."""
        for topic in required(topics, "topic"):
            await self._session.admin.delete_topic(topic)
            say(f"{topic}: deleted")

    async def describe(self, *topics: str) -> None:
        """Show settings and offsets of topics."""
        for topic in required(topics, "topic"):
            say(*show_topic(await self._session.admin.describe_topic(topic)))

    async def groups(self) -> None:
        """List the consumer groups."""
        say(*(await self._session.admin.groups() or ["no groups"]))

    async def group(self, name: str, /) -> None:
        """Show the members of a group, and how far it has come."""
        say(*show_group(await self._session.admin.describe_group(name)))

    async def send(
        self,
        topic: str,
        /,
        *values: Annotated[str, Parameter(allow_leading_hyphen=False)],
        key: str | None = None,
        header: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
        partition: int | None = None,
        null: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    ) -> None:
        """Send records, one for each value.

        Parameters
        ----------
        values
            In quotes when it has spaces: send orders 'two words' --key 7
        key
            Decides about the partition.
        header
            A header as name=value; may be repeated.
        partition
            Where to, whatever the key.
        null
            Send a record without a value: a tombstone.
        """
        records: list[bytes | None] = [value.encode() for value in values]
        if null:
            records.append(None)
        if not records:
            raise UsageError("nothing to send: name a value, or --null")
        headers = [(name, value.encode()) for name, value in pairs(header, "--header").items()]
        for value in records:
            at, offset = await self._session.send(
                topic, value, None if key is None else key.encode(), headers, partition
            )
            say(f"{topic}:{at}:{offset}")

    async def subscribe(
        self,
        *topics: str,
        from_end: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    ) -> None:
        """Read topics, besides those that are read already.

        Parameters
        ----------
        from_end
            Only what is new. In a group, the group's offsets decide.
        """
        await self._session.subscribe(required(topics, "topic"), from_end=from_end)
        await self.status()

    async def unsubscribe(self, *topics: str) -> None:
        """Stop reading topics; all of them if none is named."""
        await self._session.unsubscribe(topics)
        await self.status()

    async def join(self, group: str, /) -> None:
        """Become a member of a group: it shares the partitions of what is subscribed."""
        await self._session.join(group)
        await self.status()

    async def leave(self) -> None:
        """Leave the group, and read all partitions without one."""
        await self._session.leave()
        await self.status()

    async def poll(
        self,
        *,
        limit: Annotated[int, Parameter("--max")] = 20,
        wait: float = 2.0,
        form: Annotated[str, Parameter("--format")] = "full",
    ) -> None:
        """Show the next records; in a group, commit them.

        Parameters
        ----------
        limit
            At most so many.
        wait
            Seconds to wait for the first.
        form
            As for `kmr broker consume`: value, key-value, full, json or a template.
        """
        write = formatter(form)
        records = await self._session.poll(limit, wait)
        shown = b"".join(map(write, records)).decode("utf-8", "backslashreplace")
        say(*(shown.removesuffix("\n").split("\n") if records else ["nothing new"]))

    async def seek(self, where: str, /) -> None:
        """Go on reading at the beginning, at the end, or at an offset."""
        await self._session.seek(where)
        await self.status()

    async def status(self) -> None:
        """Show what is subscribed, the group, and the next offset of each partition."""
        session = self._session
        if not session.topics:
            say("nothing is subscribed")
            return
        group = f"in group {session.group}" if session.group else "in no group"
        say(f"reading {', '.join(sorted(session.topics))}, {group}")
        positions = await session.positions()
        rows = [(tp.topic, tp.partition, offset) for tp, offset in positions.items()]
        if rows:
            say(*columns(["TOPIC", "PARTITION", "NEXT"], rows))
