"""Values of topics' settings: read from text, checked, and shown, as Apache Kafka 4.3.1 does.

Refusals are in Kafka's words, on which clients match.
"""

from __future__ import annotations

import math
import re
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from ..errors import RequestError
from ..log.log_config import BOUNDS

if TYPE_CHECKING:
    from collections.abc import Iterable

Value = str | int | float | bool
"""A value of a setting; that of a list has its elements separated by commas, without spaces."""


class ConfigType(IntEnum):
    """Types in DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


_CLEANUP_POLICY: Final = "cleanup.policy"
_ANY: Final = math.inf
_LIMITS: Final = {
    "file.delete.delay.ms": (0, _ANY),
    "internal.segment.bytes": (1, _ANY),
    "local.retention.bytes": (-2, _ANY),
    "local.retention.ms": (-2, _ANY),
    "min.insync.replicas": (1, _ANY),
    "segment.bytes": (1024 * 1024, _ANY),
    "segment.index.bytes": (4, _ANY),
    "segment.jitter.ms": (0, _ANY),
}
"""Limits that a request has beside those of the log, or in their place."""
_CHOICES: Final = {
    _CLEANUP_POLICY: ("compact", "delete"),
    "compression.type": ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
}
_REPLICA_LISTS: Final = {
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
}
_REPLICA: Final = re.compile(r"([0-9]+:[0-9]+)?")
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,20}")
_NUMBER: Final = re.compile(r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|Infinity)")
_BITS: Final = {ConfigType.INT: 31, ConfigType.LONG: 63}


def parse_value(name: str, kind: ConfigType, text: str) -> Value:
    """Read a value of a type; spaces around it do not count. Raises RequestError (INVALID_CONFIG)."""
    bare = text.strip()
    match kind:
        case ConfigType.INT | ConfigType.LONG:
            limit = 1 << _BITS[kind]
            if not _WHOLE_NUMBER.fullmatch(bare) or not -limit <= int(bare) < limit:
                raise _refused(name, text, f"Not a number of type {kind.name}")
            return int(bare)
        case ConfigType.DOUBLE:
            if not _NUMBER.fullmatch(bare):
                raise _refused(name, text, "Not a number of type DOUBLE")
            return float(bare)
        case ConfigType.BOOLEAN:
            if bare.lower() not in ("true", "false"):
                raise _refused(name, text, "Expected value to be either true or false")
            return bare.lower() == "true"
        case ConfigType.LIST:
            elements = [each.strip() for each in bare.split(",")]
            once = name == _CLEANUP_POLICY and "" not in elements
            return ",".join(dict.fromkeys(elements) if once else elements)
        case _:
            return bare


def check_value(name: str, value: Value) -> None:
    """Raise RequestError (INVALID_CONFIG) if Kafka refuses a value in a request."""
    if isinstance(value, str):
        _check_text(name, value)
    elif name == "compression.gzip.level":
        if not (1 <= value <= 9 or value == -1):
            raise _refused(name, value, "Value must be between 1 and 9 or equal to -1")
    elif not isinstance(value, bool):
        low, high = _LIMITS[name] if name in _LIMITS else BOUNDS[name.replace(".", "_")]
        if value < low:
            raise _refused(name, value, f"Value must be at least {low}")
        if value > high:
            raise _refused(name, value, f"Value must be no more than {high}")


def shown_value(value: object) -> str:
    """Return a value as it is described."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def invalid(message: str) -> RequestError:
    """The refusal of a setting."""
    return RequestError(ErrorCode.invalid_config, message)


def _check_text(name: str, value: str) -> None:
    elements = value.split(",")
    if name == _CLEANUP_POLICY:
        if value and "" in elements:
            raise invalid(f"Configuration '{name}' values must not be empty.")
        _check_choice(name, [each for each in elements if each])
    elif name in _CHOICES:
        _check_choice(name, [value])
    elif name in _REPLICA_LISTS and value != "*" and not all(map(_REPLICA.fullmatch, elements)):
        raise _refused(
            name,
            f"[{', '.join(elements)}]",
            f"{name} must be the literal '*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
        )


def _check_choice(name: str, values: Iterable[str]) -> None:
    for value in values:
        if value not in _CHOICES[name]:
            raise _refused(name, value, f"String must be one of: {', '.join(_CHOICES[name])}")


def _refused(name: str, value: Value, reason: str) -> RequestError:
    shown = "Infinity" if value == _ANY else shown_value(value)
    return invalid(f"Invalid value {shown} for configuration {name}: {reason}")
