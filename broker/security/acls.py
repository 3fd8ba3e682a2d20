"""What each principal may do, in a file of rules; what no rule allows, or one denies, is denied."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from broker.errors import BrokerError
from broker.security.files import WatchedFile, read_private, write_private

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = [
    "ANY_NAME",
    "CLUSTER",
    "EVERY_HOST",
    "Authorizer",
    "Denial",
    "Operation",
    "Question",
    "Resource",
    "Rule",
    "read_rules",
    "write_rules",
]

ANY_NAME: Final = ""
"""Asks whether an operation is allowed on some resource, whatever its name."""

EVERY_HOST: Final = "*"
"""The host of rules that hold wherever clients are."""

CLUSTER: Final = "kafka-cluster"
"""The name of the one cluster among resources, as with Kafka."""

_WHAT = "the file of access rules"
_LOOK_AGAIN = 1.0  # seconds
_MAX_REMEMBERED = 10_000
_EVERYBODY = "User:*"


class Operation(StrEnum):
    """What can be allowed and denied; `all` is everything."""

    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    CLUSTER_ACTION = "cluster-action"
    DESCRIBE_CONFIGS = "describe-configs"
    ALTER_CONFIGS = "alter-configs"
    IDEMPOTENT_WRITE = "idempotent-write"
    ALL = "all"


_IMPLIED_BY: Final = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
"""Who is allowed to do one of these may do this too, as with Kafka."""


class Resource(StrEnum):
    """What operations are allowed on; there is one cluster."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional id"
    CLUSTER = "cluster"


class Question(NamedTuple):
    """Whether this principal, from this host, may do this."""

    principal: str
    operation: Operation
    resource: Resource
    name: str
    host: str


class Rule(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Allows a principal (`User:alice`, `User:*` for everybody) operations on all that is named.

    A name that ends with `*` stands for all that begin with what is before it. `hosts` are the addresses
    of clients that it holds for; `*` is every one. Raises ValueError.
    """

    principal: str
    operations: tuple[Operation, ...]
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    transactional_ids: tuple[str, ...] = ()
    cluster: bool = False
    hosts: tuple[str, ...] = (EVERY_HOST,)

    def __post_init__(self) -> None:
        if not self.principal.removeprefix("User:") or not self.principal.startswith("User:"):
            raise ValueError(
                f"a principal begins with User: and has a name, not {self.principal!r}"
            )
        if not self.operations:
            raise ValueError(f"the rule for {self.principal} names no operation")
        if not (self.topics or self.groups or self.transactional_ids or self.cluster):
            raise ValueError(
                f"the rule for {self.principal} names no topic, group, transactional id or cluster"
            )
        if not self.hosts or "" in self.hosts:
            raise ValueError(f"the rule for {self.principal} names no host; * is every one")

    def allows(self, question: Question) -> bool:
        """Whether the rule allows this."""
        implied_by = _IMPLIED_BY.get(question.operation, ())
        return self._concerns(question, (question.operation, Operation.ALL, *implied_by))

    def denies(self, question: Question) -> bool:
        """Whether it must not be done, whatever else allows it."""
        return False

    def names(self, resource: Resource) -> tuple[str, ...]:
        """What it is about."""
        match resource:
            case Resource.TOPIC:
                return self.topics
            case Resource.GROUP:
                return self.groups
            case Resource.TRANSACTIONAL_ID:
                return self.transactional_ids
            case Resource.CLUSTER:
                return (CLUSTER,) if self.cluster else ()

    def _concerns(self, question: Question, operations: Sequence[Operation]) -> bool:
        return (
            self.principal in (question.principal, _EVERYBODY)
            and not {question.host, EVERY_HOST}.isdisjoint(self.hosts)
            and any(operation in self.operations for operation in operations)
            and any(_covers(each, question.name) for each in self.names(question.resource))
        )


class Denial(Rule, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Denies what it names, whatever rules allow it; what other operations imply is not denied by them."""

    def allows(self, question: Question) -> bool:
        """It allows nothing."""
        return False

    def denies(self, question: Question) -> bool:
        """Whether the rule denies this."""
        return self._concerns(question, (question.operation, Operation.ALL))


def _covers(pattern: str, name: str) -> bool:
    """Of a name that is a pattern too: whether all that it stands for is covered."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


class _File(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    allow: tuple[Rule, ...]
    deny: tuple[Denial, ...] = ()


def read_rules(path: Path) -> tuple[Rule, ...]:
    """The rules in a file. Raises BrokerError."""
    return read_private(path, _parse, _WHAT)


def write_rules(path: Path, rules: Sequence[Rule]) -> None:
    """Create or replace a file of rules, mode 0600. Raises BrokerError."""
    denials = tuple(each for each in rules if isinstance(each, Denial))
    allowed = tuple(each for each in rules if not isinstance(each, Denial))
    data = msgspec.json.format(msgspec.json.encode(_File(allowed, denials)))
    try:
        write_private(path, data + b"\n")
    except OSError as error:
        raise BrokerError(f"{_WHAT} {path} cannot be written: {error.strerror}") from error


def _parse(data: bytes) -> tuple[Rule, ...]:
    found = msgspec.json.decode(data, type=_File)
    return (*found.allow, *found.deny)


class Authorizer:
    """Who may do what on a running broker; a change of the file holds within about a second."""

    def __init__(self, path: Path) -> None:
        """Raises BrokerError."""
        self._path = path
        self._file = WatchedFile(path, _parse, _WHAT, interval=_LOOK_AGAIN)
        self._rules = self._file.content
        self._remembered: dict[Question, bool] = {}

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

    def allows(self, question: Question) -> bool:
        """Whether a rule allows this, and none denies it; `ANY_NAME` asks for any resource of the kind."""
        rules = self._file.content
        if rules is not self._rules or len(self._remembered) >= _MAX_REMEMBERED:
            self._rules = rules
            self._remembered.clear()
        answer = self._remembered.get(question)
        if answer is None:
            names = {question.name}
            if question.name == ANY_NAME:
                names = {name for rule in rules for name in rule.names(question.resource)}
            answer = any(_allowed(rules, question._replace(name=name)) for name in names)
            self._remembered[question] = answer
        return answer


def _allowed(rules: Sequence[Rule], question: Question) -> bool:
    return any(rule.allows(question) for rule in rules) and not any(
        rule.denies(question) for rule in rules
    )
