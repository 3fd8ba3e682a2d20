"""What the brokers say: topics, permissions, the group's members and its limits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from ..config.schema import SECONDS, show_count, show_quantity
from ..kafka.admin import NotAllowed
from ..kafka.subscription import Subscription
from ..memory.window import MICROS
from ..reducers.finding import Finding, ok, problem, warning
from ..reducers.sink import Sink, capabilities_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..kafka.admin import Admin, GroupListing, TopicFacts
    from ..record import TopicPartition
    from ..settings import Settings
    from ..strategy import Strategy


_PROTOCOL: Final = "sticky"
_ABSENT: Final = ("Dead", "Empty")
_LARGEST: Final = "max.message.bytes"
_HEADERS_OF_LETTERS: Final = 10_000
"""Bytes that a dead letter may have beside its record, see `DeadLetterWriter`."""


class ClusterCheck:
    """The checks of one cluster. Call `topics` before the others that need it.

    Attributes:
        readable: the input topics that can be read, with the number of their partitions.
        may_join: whether we may join the group, and so read its offsets.
    """

    def __init__(self, strategy: Strategy, settings: Settings, admin: Admin) -> None:
        self._strategy = strategy
        self._settings = settings
        self._admin = admin
        self.readable: dict[str, int] = {}
        self.may_join = False
        self._largest: dict[str, int] = {}

    async def brokers(self) -> list[Finding]:
        """Check the brokers' limits of a member."""
        settings, brokers = self._settings, await self._admin.brokers()
        security = settings.security
        how: str = security.protocol
        if how.startswith("SASL"):
            how += f", {security.sasl_mechanism}"
        found = [ok("brokers", f"{', '.join(brokers)} ({how})")]
        limits = await self._admin.broker_settings()
        if limits is None:
            return [*found, ok("brokers", "we may not read their limits: not compared")]
        return [*found, *self._session(limits)]

    def _session(self, limits: Mapping[str, str]) -> list[Finding]:
        seconds = self._settings.session_timeout
        low = int(limits.get("group.min.session.timeout.ms", "0")) / 1000
        high = int(limits.get("group.max.session.timeout.ms", str(2**31))) / 1000
        if low <= seconds <= high:
            return [ok("session_timeout", f"the brokers allow {seconds:g} s")]
        return [
            problem(
                "session_timeout",
                f"{seconds:g} s; the brokers allow {low:g} to {high:g} s (group.min.session.timeout.ms, "
                "group.max.session.timeout.ms) and refuse the worker",
                "change session_timeout, or the brokers' limits",
            )
        ]

    async def topics(self) -> list[Finding]:
        """Check the topics that are read."""
        settings = self._settings
        subscription = Subscription(settings.topics, settings.topic_pattern)
        if subscription.pattern is None:
            known = await self._admin.topics(list(settings.topics))
        else:
            every = await self._admin.topics(None)
            known = {name: facts for name, facts in every.items() if name in subscription}
        found = []
        if not known:
            found.append(warning("topics", f"no topic matches {subscription.pattern} yet"))
        for name, facts in sorted(known.items()):
            if (wrong := facts.problem("READ", self._user())) is not None:
                found.append(problem(f"topic {name}", *wrong))
            else:
                found += await self._input(name, facts)
        return [*found, *self._turns()]

    def _turns(self) -> list[Finding]:
        """Compare `max_age` with the time in which each partition has had its turn to be written."""
        sink, strategy = self._strategy.reducers[-1], self._strategy
        can = capabilities_of(sink)
        rate = None if can.joins_rows else can.flushes_per_second
        if rate is None or sink.max_age is None or strategy.requested_delivery == "at-least-once":
            return []
        partitions = sum(self.readable.values())
        seconds = partitions / rate / self._settings.worker_count
        if seconds <= max(sink.max_age, 1.0):
            return []
        return [
            warning(
                next(reversed(strategy.stages)),
                f"rows of {partitions} partitions are written up to {seconds:.0f} s after they came, not "
                f"within max_age ({sink.max_age:g} s): a worker makes {rate:g} INSERTs a second "
                "(inserts_per_second)",
                "raise max_age; or start more workers, raise inserts_per_second if the server can merge so "
                "many parts, or use delivery='at-least-once', which writes partitions together",
            )
        ]

    async def _input(self, name: str, facts: TopicFacts) -> list[Finding]:
        subject, settings = f"topic {name}", self._settings
        self.readable[name] = facts.partitions
        found = [ok(subject, f"we may read its {show_count(facts.partitions, 'partition')}")]
        if facts.lagging:
            found.append(
                warning(
                    subject,
                    f"{show_count(len(facts.lagging), 'partition')} without a replica: lost with one more "
                    "broker",
                    "start the brokers that have the replicas",
                )
            )
        limits = await self._admin.topic_settings(name)
        largest = self._largest[name] = int((limits or {}).get(_LARGEST, "0"))
        if largest > settings.budget:
            found.append(
                warning(
                    subject,
                    f"a record batch may have {largest} bytes ({_LARGEST}), more than inflight_bytes "
                    f"({settings.budget}): such a batch needs memory that the limit does not foresee",
                    f"raise inflight_bytes, or lower {_LARGEST}",
                )
            )
        return found

    async def group(self) -> list[Finding]:
        """Check the permission for the group, and its members."""
        settings, subject = self._settings, f"group {self._settings.group}"
        not_allowed = problem(
            subject,
            "we may not join it: the worker fails at its start",
            f"allow {self._user()} READ on the group",
        )
        try:
            facts = await self._admin.group(settings.group)
        except NotAllowed:
            return [not_allowed]
        if facts.operations is not None and "READ" not in facts.operations:
            return [not_allowed]
        self.may_join = True
        if facts.state in _ABSENT:
            return [ok(subject, "we may join it; it has no members now")]
        return [*self._protocol(facts), *self._members(facts)]

    def _protocol(self, facts: GroupListing) -> list[Finding]:
        subject = f"group {self._settings.group}"
        if facts.protocol_type in ("", "consumer") and facts.protocol in ("", _PROTOCOL):
            return []
        theirs = " ".join(filter(None, (facts.protocol_type, facts.protocol)))
        return [
            problem(
                subject,
                f"its members use the protocol {theirs}, ours is consumer {_PROTOCOL}: the broker refuses us "
                "as long as they are there",
                "stop them, or choose another group",
            )
        ]

    def _members(self, facts: GroupListing) -> list[Finding]:
        settings, subject = self._settings, f"group {self._settings.group}"
        members, workers = len(facts.members), settings.worker_count
        hosts = sorted({member.host for member in facts.members})
        found = [ok(subject, f"it has {show_count(members, 'member')}, at {', '.join(hosts)}")]
        ours = {settings.group_instance_id}
        if workers > 1:
            ours = {f"{settings.group_instance_id}-{index}" for index in range(workers)}
        same = [each for each in facts.members if each.instance_id in ours - {None}]
        found += [
            warning(
                subject,
                f"a member named {member.instance_id} is alive at {member.host}: two of one name put each "
                "other out, and stop with an error",
                "give each worker its own group_instance_id, or stop the other one first",
            )
            for member in same
        ]
        members += workers - len(same)
        partitions = sum(self.readable.values())
        if partitions and members > partitions:
            found.append(
                warning(
                    subject,
                    f"with ours, {members} members share "
                    f"{show_count(partitions, 'partition')}: some have nothing to do",
                    "add partitions, or start fewer workers",
                )
            )
        return found

    async def dead_letters(self) -> list[Finding]:
        """Compare the sizes of messages that the dead letter topic and the input accept."""
        sink = self._strategy.reduce_err
        servers = self._settings.bootstrap_servers
        topic = sink.topic_written(servers) if isinstance(sink, Sink) else None
        if topic is None:
            return []
        accepted = int((await self._admin.topic_settings(topic) or {}).get(_LARGEST, "0"))
        needed = max(self._largest.values(), default=0) + _HEADERS_OF_LETTERS
        if not accepted or accepted >= needed:
            return []
        return [
            warning(
                f"topic {topic}",
                f"it accepts messages of {accepted:,} bytes ({_LARGEST}); a failed record with the headers "
                f"of a dead letter may have {needed:,}: a message that it refuses stops the worker",
                f"set {_LARGEST} of {topic} to {needed} or more",
            )
        ]

    def _user(self) -> str:
        return self._settings.security.sasl_user or "the user of this connection"


_NEARLY: Final = 0.75
"""The part of `retention.ms` after which a record that is not read yet is in danger."""

_OUTAGE: Final = 86_400.0
"""Seconds without a worker that retention should outlast."""

_AHEAD_MS: Final = 60_000
"""How far a record may be ahead of our clock."""


async def check_offsets(
    strategy: Strategy, settings: Settings, admin: Admin, topics: Iterable[str]
) -> list[Finding]:
    """Compare committed offsets with the logs, and both with the retention and the clock."""
    partitions = await admin.topic_partitions(topics)
    committed = await admin.list_group_offsets(settings.group)
    first = await admin.beginning_offsets(partitions)
    end = await admin.end_offsets(partitions)
    found = []
    reading: dict[TopicPartition, int] = {}
    for partition in partitions:
        if (entry := committed.get(partition)) is None:
            continue
        if first[partition] <= entry.offset <= end[partition]:
            reading[partition] = entry.offset
        else:
            found.append(
                _outside(settings, partition, entry.offset, first[partition], end[partition])
            )
    found += await _retention(admin, reading, end)
    found += await _memory(strategy, admin, sorted({at.topic for at in partitions}))
    found += await _clock(admin, partitions)
    lag = sum(end[partition] - offset for partition, offset in reading.items())
    new = sum(partition not in committed for partition in partitions)
    text = f"committed offsets of {show_count(len(reading), 'partition')}, with a lag of {lag:,}"
    if new:
        text += f"; {new} begin at auto_offset_reset ({settings.auto_offset_reset})"
    return [ok(f"group {settings.group}", text), *found]


def _outside(
    settings: Settings, partition: TopicPartition, offset: int, first: int, end: int
) -> Finding:
    subject = f"topic {partition.topic}"
    reset = f"run kmr offsets reset --group {settings.group} {partition.flags} --to-earliest"
    if offset > end:
        what = (
            f"{partition}: the committed offset {offset} is after the end of the log ({end}): the topic was "
            "created anew, or lost records. The worker stops there"
        )
        return problem(
            subject,
            what,
            f"{reset} if it was created anew, --to-latest if it lost records",
        )
    what = (
        f"{partition}: the committed offset is {offset}, the log begins at {first}: retention has "
        f"deleted {first - offset:,} records that the group has not read"
    )
    if settings.on_out_of_range == "error":
        return problem(
            subject,
            f"{what}. The worker stops there",
            f"{reset}, or set on_out_of_range",
        )
    return warning(subject, f"{what}. The worker continues at {settings.on_out_of_range}")


async def _retention(
    admin: Admin,
    reading: dict[TopicPartition, int],
    end: dict[TopicPartition, int],
) -> list[Finding]:
    """Find topics whose next unread record retention will soon delete."""
    found = []
    for topic in sorted({partition.topic for partition in reading}):
        limits = await admin.topic_settings(topic)
        retention = int((limits or {}).get("retention.ms", "-1"))
        if retention < 0 or "delete" not in (limits or {}).get("cleanup.policy", "delete"):
            continue
        latest = round(time.time() * 1000 - _NEARLY * retention)
        ours = [p for p in reading if p.topic == topic and reading[p] < end[p]]
        young = await admin.offsets_for_times(dict.fromkeys(ours, latest))
        late = [p for p in ours if (at := young[p]) is None or reading[p] < at]
        if late:
            found.append(
                warning(
                    f"topic {topic}",
                    f"the next record of {show_count(len(late), 'partition')} is older than {_NEARLY:.0%} of "
                    f"retention.ms ({retention / 3_600_000:g} h): it may be deleted before it is read",
                    "raise retention.ms until the group has caught up",
                )
            )
    return found


async def _memory(strategy: Strategy, admin: Admin, topics: Iterable[str]) -> list[Finding]:
    """Find topics that keep records for less than a start reads again, plus a day of outage."""
    again = [
        ("within= of Distinct", each.within, "duplicates may pass after it")
        for each in strategy.distincts.values()
    ]
    if (window := strategy.window) is not None:
        gone = "records of open windows may be gone, without which no worker starts"
        again.append(("what windows hold", window.holds / MICROS, gone))
    found = []
    for topic in topics if again else ():
        limits = await admin.topic_settings(topic) or {}
        retention = int(limits.get("retention.ms", "-1")) / 1000
        if retention < 0 or "delete" not in limits.get("cleanup.policy", "delete"):
            continue
        found += [
            warning(
                f"topic {topic}",
                f"retention.ms ({show_quantity(retention, SECONDS)}) is shorter than {what} "
                f"({show_quantity(seconds, SECONDS)}) and a day without a worker: {effect}",
                "raise retention.ms",
            )
            for what, seconds, effect in again
            if retention < seconds + _OUTAGE
        ]
    return found


async def _clock(admin: Admin, partitions: list[TopicPartition]) -> list[Finding]:
    """Find records of the future: no API tells the time of a broker."""
    soon = round(time.time() * 1000) + _AHEAD_MS
    found = await admin.offsets_for_times(dict.fromkeys(partitions, soon))
    ahead = [partition for partition, offset in found.items() if offset is not None]
    if not ahead:
        return []
    return [
        warning(
            "clock",
            f"{ahead[0]} has records more than {_AHEAD_MS // 1000} s in the future: our clock is behind, or "
            "that of producers or brokers ahead. Lags in seconds are wrong, and such records are kept longer",
            "let all machines synchronise their clocks (NTP)",
        )
    ]
