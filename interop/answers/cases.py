"""Settings that both brokers are given: every topic setting at good and bad values, and combinations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kmr.broker.topics.setting_values import ConfigType
from kmr.broker.topics.topic_config import TOPIC_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Case", "cases", "named"]

Case = tuple[tuple[str, str | None], ...]
"""The settings of one request: names and values."""

_MALFORMED: Final = ("", " ", "x", "1x", "0x10", "1_000", "1,000", "true", "-", "1e3", "nan", "½")
_INT_EDGES: Final = (-(2**31) - 1, -(2**31), 2**31 - 1, 2**31)
_LONG_EDGES: Final = (-(2**63) - 1, -(2**63), 2**63 - 1, 2**63)
_NUMBERS: Final = ("-2", "-1", "0", "1", "2", "100", "1000000", "+5", " 7 ", "007", "1.0", "1.5")
_BOOLEANS: Final = ("true", "false", "True", "FALSE", " true ", "1", "0", "yes", "", "x")
_RATIOS: Final = ("0.5", ".5", "5e-1", "1.1", "-0.1", "0.50", "1d", "0x1p-1", "Infinity", "NaN")
_SPECIAL: Final = {
    "cleanup.policy": (
        *("delete", "compact", "compact,delete", "delete,compact", "delete, compact", " delete"),
        *("", "x", "Delete", "delete,x", "delete,delete", ",", "delete,", ",delete", "none"),
    ),
    "compression.gzip.level": ("9", "10"),
    "compression.lz4.level": ("17", "18"),
    "compression.zstd.level": ("22", "23", "-131072", "-131073"),
    "compression.type": (
        *("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd", "none"),
        *("", "GZIP", " gzip ", "x", "gzip,lz4"),
    ),
    "message.timestamp.type": (
        *("CreateTime", "LogAppendTime", "createtime", "", " CreateTime", "x"),
    ),
    "index.interval.bytes": ("4096",),
    "max.message.bytes": ("1048588",),
    "min.insync.replicas": ("3",),
    "segment.bytes": ("1048575", "1048576", "1073741824"),
    "segment.index.bytes": ("3", "4", "5", "8"),
    "follower.replication.throttled.replicas": (
        *("*", "0:0", "0:0,1:0", "0:1, 1:1", "0", "0:", ":0", "0:0:0", "a:b", "*,0:0", "0:0,*"),
        *("", ",", "0:0,", "none", "-1:0", "0:0,0:0", "**", "0;0"),
    ),
    "leader.replication.throttled.replicas": ("*", "0:0", "0:0,1:0", "0", "a:b", "*,0:0", "", ","),
}
_COMBINED: Final[Sequence[Case]] = (
    (),
    (("no.such", "1"),),
    (("", "1"),),
    (("Retention.ms", "1"),),
    (("retention.ms ", "1"),),
    (("retention", "1"),),
    (("log.retention.ms", "1"),),
    (("message.format.version", "3.0"),),
    (("message.downconversion.enable", "true"),),
    (("message.timestamp.difference.max.ms", "1"),),
    (("internal.segment.bytes", "1"),),
    (("internal.segment.bytes", "0"),),
    (("internal.segment.bytes", "-1"),),
    (("internal.segment.bytes", "100"), ("segment.bytes", "1048576")),
    (("retention.ms", None),),
    (("no.such", None),),
    (("retention.ms", None), ("cleanup.policy", None)),
    (("retention.ms", "1"), ("cleanup.policy", None)),
    (("retention.ms", "1"), ("no.such", "1")),
    (("no.such", "1"), ("retention.ms", "x")),
    (("retention.ms", "x"), ("no.such", "1")),
    (("retention.ms", "x"), ("segment.ms", "x")),
    (("segment.ms", "x"), ("retention.ms", "x")),
    (("retention.ms", "1"), ("retention.ms", "1")),
    (("retention.ms", "1"), ("retention.ms", "2")),
    (("retention.ms", "1"), ("segment.ms", "1"), ("cleanup.policy", "compact")),
    (("min.compaction.lag.ms", "2"), ("max.compaction.lag.ms", "1")),
    (("min.compaction.lag.ms", "1"), ("max.compaction.lag.ms", "1")),
    (("min.compaction.lag.ms", "1"), ("max.compaction.lag.ms", "2")),
    (("retention.ms", "1"), ("local.retention.ms", "2")),
    (("retention.bytes", "1"), ("local.retention.bytes", "2")),
    (("retention.bytes", "10"), ("segment.bytes", "1048576")),
    (("segment.ms", "1"), ("segment.jitter.ms", "2")),
    (("segment.bytes", "1048576"), ("max.message.bytes", "2000000")),
    (("remote.storage.enable", "false"), ("cleanup.policy", "compact")),
    (("message.timestamp.type", "LogAppendTime"), ("message.timestamp.before.max.ms", "1")),
    (("compression.type", "gzip"), ("compression.gzip.level", "1")),
    (("compression.type", "gzip"), ("compression.zstd.level", "23")),
)


def named(case: Case) -> str:
    """A case as one reads it."""
    return " ".join(f"{name}={value!r}" for name, value in case) or "no settings"


def cases() -> Iterator[Case]:
    """Every case, each once."""
    yield from _COMBINED
    for name, setting in TOPIC_SETTINGS.items():
        values = [*_values(setting.type), *_SPECIAL.get(name, ())]
        for value in dict.fromkeys(values):
            yield ((name, value),)


def _values(kind: ConfigType) -> Sequence[str]:
    match kind:
        case ConfigType.INT:
            return (*_NUMBERS, *map(str, _INT_EDGES), *_MALFORMED)
        case ConfigType.LONG:
            return (*_NUMBERS, *map(str, _LONG_EDGES), *_MALFORMED)
        case ConfigType.DOUBLE:
            return (*_NUMBERS, *_RATIOS, *_MALFORMED)
        case ConfigType.BOOLEAN:
            return _BOOLEANS
        case _:
            return ()
