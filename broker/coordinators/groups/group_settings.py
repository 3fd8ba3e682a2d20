"""Settings of single groups of KIP-848: how long the members' sessions last, and how often they heartbeat.

They are kept in one file of the data directory, for groups that do not exist yet too. Limits, and the words
of refusals, are those of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping  # noqa: TC003 - msgspec reads the annotation
from typing import TYPE_CHECKING, Final, NamedTuple

from anyio import to_thread

from ...log.durable_files import ChecksummedFile, read_checked, write_checked
from ...topics.setting_values import ConfigType, invalid, parse_value
from ...topics.topic_config import ConfigEntry, ConfigSource, Synonym

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ...settings import BrokerSettings


class _Setting(NamedTuple):
    """`field`: of `BrokerSettings`, with the default; `low`, `high`: Kafka's limits in milliseconds."""

    field: str
    low: int
    high: int
    documentation: str


_SESSION: Final = "consumer.session.timeout.ms"
_HEARTBEAT: Final = "consumer.heartbeat.interval.ms"
_BUILT_IN: Final = {_SESSION: 45_000, _HEARTBEAT: 5_000}
GROUP_SETTINGS: Final = {
    _SESSION: _Setting(
        "group_consumer_session_timeout",
        45_000,
        60_000,
        "Time without a heartbeat after which a member of the group is removed.",
    ),
    _HEARTBEAT: _Setting(
        "group_consumer_heartbeat_interval",
        5_000,
        15_000,
        "Time between two heartbeats of a member of the group.",
    ),
}
"""By Kafka's name. A default outside of the limits moves them."""


class _SettingsFile(ChecksummedFile, frozen=True):
    groups: Mapping[str, Mapping[str, str]]


class GroupOverrides:
    """The settings of all groups; a change is synced before `configure` returns.

    Args:
        path: the file, which is made by the first change; None: they are not kept.
        brokers: the defaults.

    Raises:
        OSError, ValueError: the file cannot be read, or is damaged.
    """

    def __init__(self, path: Path | None, brokers: BrokerSettings) -> None:
        self._path = path
        self._brokers = brokers
        self._own: Mapping[str, Mapping[str, str]] = {}
        if path is not None and path.exists():
            self._own = read_checked(path, _SettingsFile).groups
        self._changing = asyncio.Lock()

    def __iter__(self) -> Iterator[str]:
        """Iterate over the groups that have settings."""
        return iter(sorted(self._own))

    def own(self, group_id: str) -> Mapping[str, str]:
        """Return the settings that the group does not share with all groups."""
        return self._own.get(group_id, {})

    def session_timeout(self, group_id: str) -> float:
        """Seconds without a heartbeat after which a member is removed."""
        return self._milliseconds(group_id, _SESSION) / 1000

    def heartbeat_interval(self, group_id: str) -> float:
        """Seconds between two heartbeats of a member."""
        return self._milliseconds(group_id, _HEARTBEAT) / 1000

    def describe(self, group_id: str) -> list[ConfigEntry]:
        """Return all settings of a group, which need not exist."""
        own = self.own(group_id)
        entries = []
        for name, setting in GROUP_SETTINGS.items():
            brokers = str(self._default(name))
            built_in = brokers == str(_BUILT_IN[name])
            source = ConfigSource.DEFAULT if built_in else ConfigSource.BROKER
            synonyms = [Synonym(f"group.{name}", brokers, source)]
            if name in own:
                synonyms.insert(0, Synonym(name, own[name], ConfigSource.GROUP))
            entries.append(
                ConfigEntry(
                    name, ConfigType.INT, setting.documentation, tuple(synonyms), read_only=False
                )
            )
        return entries

    def check(self, own: Mapping[str, str]) -> dict[str, str]:
        """Return a group's settings as they are kept. Raises RequestError (INVALID_CONFIG)."""
        kept = {}
        for name, text in own.items():
            if name not in GROUP_SETTINGS:
                raise invalid(f"Unknown group config name: {name}")
            kept[name] = str(parse_value(name, ConfigType.INT, text))
        for name, text in kept.items():
            setting, default = GROUP_SETTINGS[name], self._default(name)
            limit = name.removeprefix("consumer.")
            if int(text) < min(setting.low, default):
                raise invalid(f"{name} must be greater than or equal to group.consumer.min.{limit}")
            if int(text) > max(setting.high, default):
                raise invalid(f"{name} must be less than or equal to group.consumer.max.{limit}")
        session, heartbeat = (int(kept.get(each, self._default(each))) for each in GROUP_SETTINGS)
        if heartbeat >= session:
            raise invalid(f"{_SESSION} must be greater than {_HEARTBEAT}")
        return kept

    async def configure(
        self, group_id: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        """Replace a group's own settings by `change` of them.

        Raises RequestError if one is invalid, the errors of `change`, and OSError if the disk fails.
        """
        async with self._changing:
            changed = self.check(change(self.own(group_id)))
            groups = {name: own for name, own in self._own.items() if name != group_id}
            if changed:
                groups[group_id] = changed
            if groups == self._own:
                return
            if self._path is not None:
                await to_thread.run_sync(write_checked, self._path, _SettingsFile(groups=groups))
            self._own = groups

    def _default(self, name: str) -> int:
        seconds: float = getattr(self._brokers, GROUP_SETTINGS[name].field)
        return round(seconds * 1000)

    def _milliseconds(self, group_id: str, name: str) -> int:
        own = self.own(group_id).get(name)
        return self._default(name) if own is None else int(own)
