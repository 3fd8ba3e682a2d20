"""Alterations of single settings, and resources that have no settings, which both brokers are asked for."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["EDITS", "KEYS", "RESOURCES", "SET", "Edit"]

SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3
_POLICY: Final = "cleanup.policy"
_THROTTLED: Final = "leader.replication.throttled.replicas"
_TOPIC, _BROKER, _LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32


class Edit(NamedTuple):
    """One IncrementalAlterConfigs of a topic.

    Attributes:
        own: the settings that the topic has.
        changes: name, operation and value of each.
    """

    own: tuple[tuple[str, str], ...]
    changes: tuple[tuple[str, int, str | None], ...]

    def __str__(self) -> str:
        own = " ".join(f"{name}={value!r}" for name, value in self.own) or "no settings"
        operations = {SET: "=", _DELETE: " deleted, ", _APPEND: "+=", _SUBTRACT: "-="}
        changes = (f"{name}{operations[each]}{value!r}" for name, each, value in self.changes)
        return f"{own}: {', '.join(changes) or 'no change'}"


_OWN: Final = ((_POLICY, "compact,delete"), (_THROTTLED, "0:0,1:0"), ("retention.ms", "5"))

EDITS: Final = (
    Edit(_OWN, ()),
    *(
        Edit(own, ((name, operation, value),))
        for own in ((), _OWN)
        for operation in (_APPEND, _SUBTRACT)
        for name, values in (
            (
                _POLICY,
                ("compact", "delete", "delete,compact", "compact, delete", "x", "", ",", None),
            ),
            (_THROTTLED, ("0:0", "1:0", "0:0,1:0", "2:0", "*", "x", "", None)),
            ("retention.ms", ("1", "5", "")),
            ("compression.type", ("gzip", "producer")),
            ("no.such", ("1", None)),
        )
        for value in values
    ),
    *(
        Edit(own, ((name, operation, value),))
        for own in ((), _OWN)
        for operation, value in ((_DELETE, None), (_DELETE, "x"), (SET, None))
        for name in ("retention.ms", _POLICY, "no.such")
    ),
    Edit(
        _OWN, (("retention.ms", SET, "6"), (_POLICY, _DELETE, None), (_THROTTLED, _APPEND, "2:0"))
    ),
    Edit(_OWN, (("retention.ms", SET, "6"), ("retention.ms", _DELETE, None))),
    Edit(_OWN, ((_POLICY, _SUBTRACT, "delete"), (_POLICY, _SUBTRACT, "compact"))),
    Edit(_OWN, (("retention.ms", SET, "6"), ("segment.ms", SET, "x"))),
    Edit(_OWN, (("retention.ms", SET, "6"), ("no.such", _DELETE, None))),
)

RESOURCES: Final = (
    *((_TOPIC, name) for name in ("no-such", "no good name", "", ".", "..", "x" * 250)),
    *((_BROKER, name) for name in ("7", "x", "-1", " 1")),
    *((kind, "x") for kind in (0, 1, 3, _LOGGER, 99, -1)),
    (_LOGGER, "1"),
    (_LOGGER, "7"),
    (_LOGGER, ""),
    (_CLIENT_METRICS, "x"),
    (_GROUP, "x"),
)
"""Resources without settings, or that are not there: type and name."""

KEYS: Final = (
    None,
    (),
    ("retention.ms",),
    ("no.such",),
    ("retention.ms", "no.such", "segment.ms"),
    ("",),
)
"""Settings that DescribeConfigs is asked for."""
