"""Rules one permission at a time, as Kafka's protocol names them: what it lists, adds and removes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.security.acls import EVERY_HOST, Denial, Operation, Resource, Rule

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

__all__ = [
    "WILDCARD",
    "Binding",
    "bindings_of",
    "with_bindings",
    "without_bindings",
]

WILDCARD = "*"
"""Stands for every resource of a kind."""


class Binding(NamedTuple):
    """Allows a principal one operation on one resource, or on all whose names begin so if `prefixed`.

    It holds for clients of one `host`; `denied` says that it denies it instead.
    """

    principal: str
    operation: Operation
    resource: Resource
    name: str
    prefixed: bool = False
    host: str = EVERY_HOST
    denied: bool = False

    @property
    def pattern(self) -> str:
        """The name as a rule has it."""
        return f"{self.name}*" if self.prefixed else self.name

    def covers(self, name: str) -> bool:
        """Whether it is about this name too."""
        if self.prefixed:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)


def bindings_of(rules: Iterable[Rule]) -> list[Binding]:
    """All that is allowed, each once, in the order of the rules."""
    return list(dict.fromkeys(binding for rule in rules for binding in _bindings(rule)))


def with_bindings(rules: Sequence[Rule], added: Iterable[Binding]) -> tuple[Rule, ...]:
    """The rules, and one more for each permission that they do not name."""
    known = set(bindings_of(rules))
    fresh = [binding for binding in dict.fromkeys(added) if binding not in known]
    return (*rules, *_rules(fresh))


def without_bindings(rules: Sequence[Rule], removed: Collection[Binding]) -> tuple[Rule, ...]:
    """The rules without these permissions: those that name none of them stay as they are."""
    rest: list[Rule] = []
    for rule in rules:
        bindings = _bindings(rule)
        kept = [binding for binding in bindings if binding not in removed]
        rest += [rule] if len(kept) == len(bindings) else _rules(kept)
    return tuple(rest)


def _bindings(rule: Rule) -> list[Binding]:
    denied = isinstance(rule, Denial)
    return [
        _binding(rule.principal, operation, resource, pattern, host, denied=denied)
        for resource in Resource
        for pattern in rule.names(resource)
        for operation in rule.operations
        for host in rule.hosts
    ]


def _binding(
    principal: str,
    operation: Operation,
    resource: Resource,
    pattern: str,
    host: str,
    *,
    denied: bool,
) -> Binding:
    prefixed = pattern.endswith("*") and pattern != WILDCARD
    name = pattern[:-1] if prefixed else pattern
    return Binding(principal, operation, resource, name, prefixed, host, denied)


def _rules(bindings: Iterable[Binding]) -> list[Rule]:
    """One for each principal, host and resource, with all of its operations."""
    grouped: dict[Binding, list[Operation]] = {}
    for each in bindings:
        alike = each._replace(operation=Operation.ALL)
        grouped.setdefault(alike, []).append(each.operation)
    return [_rule(alike, tuple(operations)) for alike, operations in grouped.items()]


def _rule(binding: Binding, operations: tuple[Operation, ...]) -> Rule:
    resource, pattern = binding.resource, binding.pattern
    kind = Denial if binding.denied else Rule
    return kind(
        principal=binding.principal,
        operations=operations,
        topics=(pattern,) if resource is Resource.TOPIC else (),
        groups=(pattern,) if resource is Resource.GROUP else (),
        transactional_ids=(pattern,) if resource is Resource.TRANSACTIONAL_ID else (),
        cluster=resource is Resource.CLUSTER,
        hosts=(binding.host,),
    )
