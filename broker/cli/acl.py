"""`kmr broker acl`: what clients may do on a broker that is started with --acls."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from broker.cli.errors import CommandError, UsageError, reports
from broker.cli.text import columns, required, say
from broker.security.acls import (
    EVERY_HOST,
    Denial,
    Operation,
    Resource,
    Rule,
    read_rules,
    write_rules,
)

__all__ = ["app"]

app = App(
    name="acl",
    help="Rules of a broker that is started with --acls FILE; it reads the file again by itself.",
)

AclFile = Annotated[
    Path, Parameter("--acls", env_var="KMR_BROKER__ACL_FILE", help="The file of rules.")
]
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


def _names(text: str) -> Parameter:
    return Parameter(negative=(), show_default=False, help=text)


@Parameter(name="*")
@dataclass(frozen=True)
class Named:
    """What a rule is about."""

    topic: Annotated[
        tuple[str, ...],
        _names(
            "A topic; one that ends with * stands for all that begin so. May be repeated, as the next ones."
        ),
    ] = ()
    group: Annotated[tuple[str, ...], _names("A consumer group.")] = ()
    transactional_id: Annotated[tuple[str, ...], _names("A transactional id.")] = ()
    cluster: Annotated[
        bool,
        _names(
            "The cluster: create is any topic, describe its groups and logs, alter its rules, users and"
            " replicas."
        ),
    ] = False
    host: Annotated[
        tuple[str, ...], _names("An address that the client must have; without, any.")
    ] = ()

    def rule(self, kind: type[Rule], principal: str, operations: tuple[Operation, ...]) -> Rule:
        """A rule of that kind about it. Raises UsageError."""
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
    principal: str,
    *operations: Operation,
    named: Named | None = None,
    acls: AclFile,
) -> None:
    """Allow operations on what is named; creates the file if it is missing.

    Reading, writing, deleting and altering allow to describe too, alter-configs describe-configs. A consumer
    needs read for its topics and its group; a producer write for its topics, and for its transactional id if
    it has one.

    Parameters
    ----------
    principal
        User:NAME or just NAME, User:CN=... for the subject of a client's certificate, User:ANONYMOUS for
        who does not authenticate, User:* for everybody.
    operations
        What is allowed: read, write, create, delete, alter (partitions), describe, alter-configs,
        describe-configs, or all; of the cluster also idempotent-write.
    """
    _add(acls, (named or Named()).rule(Rule, principal, operations), "allowed")


@app.command
@reports
def deny(
    principal: str,
    *operations: Operation,
    named: Named | None = None,
    acls: AclFile,
) -> None:
    """Deny operations on what is named, whatever rules allow them; parameters as for `allow`.

    What no rule allows is denied anyway: this takes something out of what others allow. To deny to read does
    not deny to describe.
    """
    _add(acls, (named or Named()).rule(Denial, principal, operations), "denied")


@app.command
@reports
def revoke(
    principal: str,
    *operations: Operation,
    named: Named | None = None,
    denied: Flag = False,
    acls: AclFile,
) -> None:
    """Remove a rule, given as it was to `allow`; without operations, all rules of the principal.

    Parameters
    ----------
    denied
        The rule was given to `deny`.
    """
    rules = read_rules(acls)
    if operations:
        rule = (named or Named()).rule(Denial if denied else Rule, principal, operations)
        rest = tuple(each for each in rules if each != rule)
    elif denied or named:
        raise UsageError("name the operations too, or only the principal to remove all its rules")
    else:
        rest = tuple(each for each in rules if each.principal != _principal(principal))
    if rest == rules:
        raise CommandError(f"{acls} has no such rule")
    write_rules(acls, rest)
    say(f"{_principal(principal)}: {len(rules) - len(rest)} rules removed")


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


def _add(acls: Path, rule: Rule, what: str) -> None:
    rules = read_rules(acls) if acls.exists() else ()
    if rule in rules:
        raise CommandError(f"{acls} has this rule already")
    write_rules(acls, (*rules, rule))
    say(f"{rule.principal}: {what}")


def _principal(name: str) -> str:
    return name if name.startswith("User:") else f"User:{name}"
