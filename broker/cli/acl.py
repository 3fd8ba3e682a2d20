"""`kmr broker acl`: access rules in the file of a broker that runs with --acls."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from ..authorization.rules import (
    EVERY_HOST,
    Denial,
    Operation,
    Resource,
    Rule,
    change_rules,
    read_rules,
)
from .terminal import CommandError, Flag, UsageError, columns, reports, required, say

if TYPE_CHECKING:
    from collections.abc import Sequence

app = App(name="acl")

AclFile = Annotated[
    Path, Parameter("--acls", env_var="KMR_BROKER__ACL_FILE", help="The file of access rules.")
]


def _option(text: str) -> Parameter:
    return Parameter(negative=(), show_default=False, help=text)


@Parameter(name="*")
@dataclass(frozen=True)
class RuleScope:
    """The resources and hosts of a rule."""

    topic: Annotated[
        tuple[str, ...],
        _option("A topic; a final * matches all names with this prefix. It may be repeated."),
    ] = ()
    group: Annotated[tuple[str, ...], _option("A consumer group; may be repeated.")] = ()
    transactional_id: Annotated[
        tuple[str, ...], _option("A transactional id; may be repeated.")
    ] = ()
    cluster: Annotated[
        bool, _option("The cluster: create any topic, describe groups and logs, alter the broker.")
    ] = False
    host: Annotated[
        tuple[str, ...], _option("An address of clients; default: any; may be repeated.")
    ] = ()

    def rule(self, kind: type[Rule], principal: str, operations: tuple[Operation, ...]) -> Rule:
        """Return a rule for these resources and hosts. Raises UsageError."""
        try:
            return kind(
                principal=_principal(principal),
                operations=required(operations, "operation"),
                topics=self.topic,
                groups=self.group,
                transactional_ids=self.transactional_id,
                cluster=self.cluster,
                hosts=self.host or (EVERY_HOST,),
            )
        except ValueError as error:
            raise UsageError(str(error)) from error


@app.command
@reports
def allow(
    principal: str, *operations: Operation, scope: RuleScope | None = None, acls: AclFile
) -> None:
    """Allow operations on resources; create the file if it is missing.

    read, write, delete and alter imply describe; alter-configs implies describe-configs. A consumer needs
    read for its topics and its group; a producer needs write for its topics, and for its transactional id
    if it has one.

    Parameters
    ----------
    principal
        User:NAME or NAME; User:CN=... for the subject of a client certificate; User:ANONYMOUS for clients
        that do not authenticate; User:* for all.
    operations
        read, write, create, delete, alter (partitions), describe, alter-configs, describe-configs, or all;
        for the cluster also idempotent-write.
    """
    _add(acls, (scope or RuleScope()).rule(Rule, principal, operations), "allowed")


@app.command
@reports
def deny(
    principal: str, *operations: Operation, scope: RuleScope | None = None, acls: AclFile
) -> None:
    """Deny operations on resources, even where rules allow them; parameters as for `allow`.

    Operations without a rule are denied anyway: a denial makes an exception to other rules. Denying read
    does not deny describe.
    """
    _add(acls, (scope or RuleScope()).rule(Denial, principal, operations), "denied")


@app.command
@reports
def revoke(
    principal: str,
    *operations: Operation,
    scope: RuleScope | None = None,
    denied: Flag = False,
    acls: AclFile,
) -> None:
    """Remove a rule, given with the arguments of `allow`; without operations, all rules of the principal.

    Parameters
    ----------
    denied
        Remove a rule that `kmr broker acl deny` added.
    """
    removed: list[Rule] = []

    def without_rules(rules: Sequence[Rule]) -> Sequence[Rule]:
        if operations:
            kind = Denial if denied else Rule
            rule = (scope or RuleScope()).rule(kind, principal, operations)
            removed.extend(each for each in rules if each == rule)
        elif denied or scope:
            raise UsageError(
                "name the operations as well, or only the principal to remove all its rules"
            )
        else:
            removed.extend(each for each in rules if each.principal == _principal(principal))
        if not removed:
            raise CommandError(f"{acls}: no such rule")
        return [each for each in rules if each not in removed]

    change_rules(acls, without_rules)
    say(f"{_principal(principal)}: {len(removed)} rules removed")


@app.command(name="list")
@reports
def list_rules(*, acls: AclFile) -> None:
    """List the rules."""
    rows = [
        (
            rule.principal,
            "deny" if isinstance(rule, Denial) else "allow",
            ",".join(rule.operations),
            str(resource),
            "" if resource is Resource.CLUSTER else name,
            ",".join(rule.hosts),
        )
        for rule in read_rules(acls)
        for resource in Resource
        for name in rule.names(resource)
    ]
    say(*columns(["PRINCIPAL", "PERMISSION", "OPERATIONS", "RESOURCE", "NAME", "HOST"], rows))


def _add(acls: Path, rule: Rule, done: str) -> None:
    def with_rule(rules: Sequence[Rule]) -> Sequence[Rule]:
        if rule in rules:
            raise CommandError(f"{acls}: the rule already exists")
        return (*rules, rule)

    change_rules(acls, with_rule, create=True)
    say(f"{rule.principal}: {done}")


def _principal(name: str) -> str:
    return name if name.startswith("User:") else f"User:{name}"
