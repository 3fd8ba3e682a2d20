"""Where the bundled broker's answers about topics' settings differ from Apache Kafka's, and why.

A difference that is not in these tables fails `make interop-kafka`; so does an entry that explains none.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["DIFFERENCES", "REFUSALS", "Difference", "Refusal"]


class Refusal(NamedTuple):
    """Settings that Apache Kafka accepts and this broker refuses.

    Attributes:
        cases: a pattern of `fnmatch` for the cases, as `asking.named` writes them.
    """

    cases: str
    reason: str


class Difference(NamedTuple):
    """A field that differs where both brokers accept or both refuse; attributes are patterns of `fnmatch`.

    Attributes:
        field: joined by slashes: `configs/segment.bytes/value`.
        ours: the bundled broker's value.
    """

    field: str
    reason: str
    cases: str = "*"
    ours: str = "*"


_TIERED: Final = "there is no tiered storage: only the defaults of its settings are accepted"
_SYNC: Final = "--fsync decides for the whole broker when records are synced"
_REQUIRED: Final = "one node has one replica"
_JAVA: Final = "Java's literals of floating point; no ratio is meant by them"
_RESOURCES: Final = "only topics, brokers and groups have settings; the catalogue lists the others"
_ELEMENTS: Final = (
    "spaces and empty elements do not count in what is added to a list or taken from it"
)

REFUSALS: Final = (
    *(Refusal(f"resource {kind} *", _RESOURCES) for kind in (8, 16)),
    Refusal("flush.messages=*", _SYNC),
    Refusal("flush.ms=*", _SYNC),
    Refusal("min.insync.replicas=*", _REQUIRED),
    Refusal("*local.retention.bytes=*", _TIERED),
    Refusal("*local.retention.ms=*", _TIERED),
    Refusal("remote.log.copy.disable=*", _TIERED),
    Refusal("remote.log.delete.on.disable=*", _TIERED),
    Refusal("internal.segment.bytes='0'", "a segment has at least one byte"),
    Refusal("internal.segment.bytes='-1'", "a segment has at least one byte"),
    Refusal("min.cleanable.dirty.ratio='NaN'", _JAVA),
    Refusal("min.cleanable.dirty.ratio='1d'", _JAVA),
    Refusal("min.cleanable.dirty.ratio='0x1p-1'", _JAVA),
    Refusal(
        "retention.ms='1' retention.ms='?'",
        "a setting twice is a mistake: Kafka too refuses it in alterations, but creates with the last one",
    ),
)

DIFFERENCES: Final = (
    *(
        Difference(f"configs/{name}/read_only", f"{reason}: read_only says so", ours="True")
        for names, reason in (
            (("local.retention.bytes", "local.retention.ms"), _TIERED),
            (("remote.log.copy.disable", "remote.log.delete.on.disable"), _TIERED),
            (("remote.storage.enable",), _TIERED),
            (("min.insync.replicas",), _REQUIRED),
        )
        for name in names
    ),
    *(
        Difference(
            f"configs/min.insync.replicas/{field}",
            "Kafka 4 sets it for the whole cluster when it is formatted; here it is built in",
        )
        for field in ("config_source", "synonyms")
    ),
    *(
        Difference(
            f"configs/segment.bytes/{field}",
            "the broker's segments have 256 MiB by default, Kafka's 1 GiB",
            ours="*268435456*",
        )
        for field in ("value", "synonyms")
    ),
    Difference(
        "error_message",
        "the refusal says that the value is null",
        "*=None*",
        "*: the value is null; give one",
    ),
    Difference(
        "error_message", "the refusal names the setting", ours="* is listed 2 times; list it once"
    ),
    Difference("error_message", "our words; clients go by the code", "resource *"),
    Difference("error_code", _RESOURCES, "resource 8 *"),
    Difference("*", _ELEMENTS, "*: cleanup.policy+=''"),
    Difference("configs/cleanup.policy/*", _ELEMENTS, "*: cleanup.policy-='compact, delete'"),
    Difference("configs/*.throttled.replicas/*", _ELEMENTS, "*.throttled.replicas+=''"),
    Difference(
        "error_message",
        "the refusal says what would be right",
        "min.compaction.lag.ms=* max.compaction.lag.ms=*",
        "*must be at most max.compaction.lag.ms*",
    ),
    Difference("error_message", _TIERED, "remote.storage.enable=*", "*: must be false"),
    Difference(
        "error_message",
        "of several bad values the first one is named, by Kafka the first one of its list",
        "*='x' *='x'",
    ),
)
