"""Access rules: what a file of rules allows and denies.

A `Rule` in the file allows several operations on several resources; a `Denial` denies them. Semantics are
those of Kafka's authorizer: whatever no rule allows is denied, and a denial overrides every rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from .private_files import PrivateFormat, WatchedFile

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of clients that do not authenticate."""

ANY_NAME: Final = ""
"""The name in a question whether an operation is allowed on any resource of a kind."""

EVERY_HOST: Final = "*"
"""The host of rules that apply to clients on all hosts."""

CLUSTER: Final = "kafka-cluster"
"""The name of the one cluster, as in Kafka."""

_CHECK_INTERVAL = 1.0  # seconds
_MAX_ANSWERS = 10_000
_LONG_NAME = 255  # characters: answers about longer names are not kept
_EVERYBODY = "User:*"


class Operation(StrEnum):
    """The operations that rules allow and deny; `all` means every one."""

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
"""A permission for one of the operations on the right implies that on the left, as in Kafka."""


class Resource(StrEnum):
    """The kinds of resources; there is one cluster."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional id"
    CLUSTER = "cluster"


class Question(NamedTuple):
    """Whether this principal, from this host, may perform the operation on the resource."""

    principal: str
    operation: Operation
    resource: Resource
    name: str
    host: str


class Rule(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Allows a principal (`User:alice`, or `User:*` for every one) operations on the named resources.

    A name that ends with `*` is a prefix. `hosts` are the addresses of clients that the rule applies to; `*`
    is every one. Raise ValueError for an incomplete rule.
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
            raise ValueError(f"the principal must be User: and a name, not {self.principal!r}")
        if not self.operations:
            raise ValueError(f"the rule for {self.principal} has no operation; name one")
        if not (self.topics or self.groups or self.transactional_ids or self.cluster):
            raise ValueError(
                f"the rule for {self.principal} has no resource; name a topic, group, transactional id or"
                " the cluster"
            )
        if not self.hosts or "" in self.hosts:
            raise ValueError(f"the rule for {self.principal} has no host; use * for every host")

    def allows(self, question: Question) -> bool:
        """Whether the rule allows the operation, or one that implies it."""
        implied_by = _IMPLIED_BY.get(question.operation, ())
        return self._applies_to(question, (question.operation, Operation.ALL, *implied_by))

    def denies(self, question: Question) -> bool:
        """Whether the rule denies the operation; a denial wins over every other rule."""
        return False

    def is_about(self, question: Question) -> bool:
        """Whether the rule names the resource, for any principal, host or operation."""
        return any(_covers(each, question.name) for each in self.names(question.resource))

    def names(self, resource: Resource) -> tuple[str, ...]:
        """Return the names and prefixes of this kind."""
        match resource:
            case Resource.TOPIC:
                return self.topics
            case Resource.GROUP:
                return self.groups
            case Resource.TRANSACTIONAL_ID:
                return self.transactional_ids
            case Resource.CLUSTER:
                return (CLUSTER,) if self.cluster else ()

    def _applies_to(self, question: Question, operations: Sequence[Operation]) -> bool:
        return (
            self.principal in (question.principal, _EVERYBODY)
            and not {question.host, EVERY_HOST}.isdisjoint(self.hosts)
            and any(operation in self.operations for operation in operations)
            and self.is_about(question)
        )


class Denial(Rule, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Denies operations on the named resources, over every rule that allows them; not implied ones."""

    def allows(self, question: Question) -> bool:
        """Return False: a denial allows nothing."""
        return False

    def denies(self, question: Question) -> bool:
        """Whether the rule denies the operation."""
        return self._applies_to(question, (question.operation, Operation.ALL))


def _covers(pattern: str, name: str) -> bool:
    """Whether the pattern covers the name, or all names of a name that is itself a prefix."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


class _RulesFile(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    allow: tuple[Rule, ...]
    deny: tuple[Denial, ...] = ()


def _parse(data: bytes) -> Sequence[Rule]:
    found = msgspec.json.decode(data, type=_RulesFile)
    return (*found.allow, *found.deny)


def _document(rules: Sequence[Rule]) -> _RulesFile:
    denials = tuple(each for each in rules if isinstance(each, Denial))
    allowed = tuple(each for each in rules if not isinstance(each, Denial))
    return _RulesFile(allowed, denials)


_FORMAT: Final = PrivateFormat[Sequence[Rule]]("the file of access rules", _parse, _document, ())
read_rules, write_rules, change_rules = _FORMAT.read, _FORMAT.write, _FORMAT.change


class Authorizer:
    """The rules of a running broker; a change of the file applies within about a second."""

    def __init__(
        self, path: Path, *, super_users: Collection[str] = (), allow_if_no_acl: bool = False
    ) -> None:
        """Raise BrokerError if the file cannot be read.

        Args:
            path: the file of rules.
            super_users: principals that are allowed everything, whatever the rules say.
            allow_if_no_acl: allow everyone every operation on a resource that no rule names, for any
                principal, host or operation (Kafka's allow.everyone.if.no.acl.found).
        """
        self._super_users = frozenset(super_users)
        self._allow_if_no_acl = allow_if_no_acl
        self._file = WatchedFile(path, _FORMAT, interval=_CHECK_INTERVAL)
        self._rules = self._file.content
        self._answers: dict[Question, bool] = {}

    def trust(self, principal: str) -> None:
        """Allow a principal everything, whatever the rules say."""
        self._super_users |= {principal}

    def allows(self, question: Question) -> bool:
        """Whether a rule allows the operation and none denies it; `ANY_NAME`: on any resource of the kind."""
        if question.principal in self._super_users:
            return True
        rules = self._file.content
        if rules is not self._rules or len(self._answers) >= _MAX_ANSWERS:
            self._rules = rules
            self._answers.clear()
        answer = self._answers.get(question)
        if answer is None:
            names = {question.name}
            if question.name == ANY_NAME:
                names |= {name for rule in rules for name in rule.names(question.resource)}
            answer = any(self._allowed(rules, question._replace(name=name)) for name in names)
            if len(question.name) <= _LONG_NAME:
                self._answers[question] = answer
        return answer

    def _allowed(self, rules: Sequence[Rule], question: Question) -> bool:
        if self._allow_if_no_acl and not any(rule.is_about(question) for rule in rules):
            return True
        return any(rule.allows(question) for rule in rules) and not any(
            rule.denies(question) for rule in rules
        )
