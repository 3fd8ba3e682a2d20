"""What each principal may do, in a file of rules; what no rule allows is denied."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from broker.errors import BrokerError
from broker.security.files import WatchedFile, read_private, write_private

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = [
    "ANY_NAME",
    "CLUSTER",
    "Authorizer",
    "Operation",
    "Resource",
    "Rule",
    "read_rules",
    "write_rules",
]

ANY_NAME: Final = ""
"""Asks whether an operation is allowed on some resource, whatever its name."""

CLUSTER: Final = "kafka-cluster"
"""The name of the one cluster among resources, as with Kafka."""

_WHAT = "the file of access rules"
_LOOK_AGAIN = 1.0  # seconds
_MAX_REMEMBERED = 10_000
_EVERYBODY = "User:*"


class Operation(StrEnum):
    """What can be allowed; `alter` is partitions and configurations, `all` everything."""

    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    ALL = "all"


_DESCRIBING: Final = frozenset(
    {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE}
)
"""Who may do one of these may describe too."""


class Resource(StrEnum):
    """What operations are allowed on; there is one cluster."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional id"
    CLUSTER = "cluster"


class Rule(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Allows a principal (`User:alice`, `User:*` for everybody) operations on all that is named.

    A name that ends with `*` stands for all that begin with what is before it. Raises ValueError.
    """

    principal: str
    operations: tuple[Operation, ...]
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    transactional_ids: tuple[str, ...] = ()
    cluster: bool = False

    def __post_init__(self) -> None:
        if not self.principal.removeprefix("User:") or not self.principal.startswith("User:"):
            raise ValueError(
                f"a principal begins with User: and has a name, not {self.principal!r}"
            )
        if not self.operations:
            raise ValueError(f"the rule for {self.principal} allows no operation")
        if not (self.topics or self.groups or self.transactional_ids or self.cluster):
            raise ValueError(
                f"the rule for {self.principal} names no topic, group, transactional id or cluster"
            )

    def allows(self, principal: str, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether the rule allows this."""
        return (
            self.principal in (principal, _EVERYBODY)
            and self._has(operation)
            and self._covers(resource, name)
        )

    def _has(self, operation: Operation) -> bool:
        if operation is Operation.DESCRIBE and not _DESCRIBING.isdisjoint(self.operations):
            return True
        return operation in self.operations or Operation.ALL in self.operations

    def _covers(self, resource: Resource, name: str) -> bool:
        if resource is Resource.CLUSTER:
            return self.cluster
        if resource is Resource.TOPIC:
            names = self.topics
        else:
            names = self.groups if resource is Resource.GROUP else self.transactional_ids
        if name == ANY_NAME:
            return bool(names)
        return any(
            name.startswith(each[:-1]) if each.endswith("*") else name == each for each in names
        )


class _File(msgspec.Struct, forbid_unknown_fields=True):
    allow: tuple[Rule, ...]


def read_rules(path: Path) -> tuple[Rule, ...]:
    """The rules in a file. Raises BrokerError."""
    return read_private(path, _parse, _WHAT)


def write_rules(path: Path, rules: Sequence[Rule]) -> None:
    """Create or replace a file of rules, mode 0600. Raises BrokerError."""
    data = msgspec.json.format(msgspec.json.encode(_File(tuple(rules))))
    try:
        write_private(path, data + b"\n")
    except OSError as error:
        raise BrokerError(f"{_WHAT} {path} cannot be written: {error.strerror}") from error


def _parse(data: bytes) -> tuple[Rule, ...]:
    return msgspec.json.decode(data, type=_File).allow


class Authorizer:
    """Who may do what on a running broker; a change of the file holds within about a second."""

    def __init__(self, path: Path) -> None:
        """Raises BrokerError."""
        self._path = path
        self._file = WatchedFile(path, _parse, _WHAT, interval=_LOOK_AGAIN)
        self._rules = self._file.content
        self._remembered: dict[tuple[str, Operation, Resource, str], bool] = {}

    @property
    def rules(self) -> Sequence[Rule]:
        """Those that hold, from a look into the file at this moment."""
        self._file.look()
        return self._file.content

    def alter(self, change: Callable[[Sequence[Rule]], Sequence[Rule]]) -> None:
        """Change what the file says; it holds at once.

        Raises BrokerError: the file cannot be written, or makes no sense, and is left as it is.
        """
        write_rules(self._path, change(read_rules(self._path)))
        self._file.look()

    def allows(self, principal: str, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether a rule allows this; `ANY_NAME` asks for any resource of the kind."""
        rules = self._file.content
        if rules is not self._rules or len(self._remembered) >= _MAX_REMEMBERED:
            self._rules = rules
            self._remembered.clear()
        question = (principal, operation, resource, name)
        answer = self._remembered.get(question)
        if answer is None:
            answer = any(rule.allows(*question) for rule in rules)
            self._remembered[question] = answer
        return answer
