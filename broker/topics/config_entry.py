"""A setting as DescribeConfigs shows it: its value, who set it, and what it falls back to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

__all__ = ["ConfigEntry", "ConfigSource", "ConfigType", "Synonym"]


class ConfigType(IntEnum):
    """Types in DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(IntEnum):
    """Who set a value, in DescribeConfigs and CreateTopics."""

    TOPIC = 1
    BROKER = 4
    DEFAULT = 5


class Synonym(NamedTuple):
    """A value that a setting has or would have if those before it were not set (KIP-226)."""

    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting of a topic or of the broker; `synonyms` begin with what holds."""

    name: str
    type: ConfigType
    documentation: str
    synonyms: tuple[Synonym, ...]
    read_only: bool

    @property
    def value(self) -> str:
        return self.synonyms[0].value

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0].source
