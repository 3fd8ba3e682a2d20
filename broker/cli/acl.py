"""`kmr broker acl`: what clients may do on a broker that is started with --acls."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from broker.cli.errors import CommandError, UsageError, reports
from broker.cli.text import columns, required, say
from broker.security.acls import Operation, Rule, read_rules, write_rules

__all__ = ["app"]

app = App(
    name="acl",
    help="Rules of a broker that is started with --acls FILE; it reads the file again by itself.",
)

AclFile = Annotated[
    Path, Parameter("--acls", env_var="KMR_BROKER__ACL_FILE", help="The file of rules.")
]
Names = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]
Cluster = Annotated[bool, Parameter(negative=(), show_default=False)]


@app.command
@reports
def allow(
    principal: str,
    *operations: Operation,
    topic: Names = (),
    group: Names = (),
    transactional_id: Names = (),
    cluster: Cluster = False,
    acls: AclFile,
) -> None:
    """Allow operations on what is named; creates the file if it is missing.

    Reading, writing, deleting and altering allow to describe too. A consumer needs read for its topics
    and its group; a producer write for its topics, and for its transactional id if it has one.

    Parameters
    ----------
    principal
        User:NAME or just NAME, User:CN=... for the subject of a client's certificate, User:ANONYMOUS for
        who does not authenticate, User:* for everybody.
    operations
        What is allowed: read, write, create, delete, alter, describe or all.
    topic
        A topic; one that ends with * stands for all that begin so. May be repeated, as the next ones.
    group
        A consumer group.
    transactional_id
        A transactional id.
    cluster
        The cluster: create is any topic, describe its groups and logs, alter its settings.
    """
    rule = _rule(principal, operations, topic, group, transactional_id, cluster=cluster)
    rules = read_rules(acls) if acls.exists() else ()
    if rule in rules:
        raise CommandError(f"{acls} has this rule already")
    write_rules(acls, (*rules, rule))
    say(f"{rule.principal}: allowed")


@app.command
@reports
def revoke(
    principal: str,
    *operations: Operation,
    topic: Names = (),
    group: Names = (),
    transactional_id: Names = (),
    cluster: Cluster = False,
    acls: AclFile,
) -> None:
    """Remove a rule, given as it was to `allow`; without operations, all rules of the principal."""
    rules = read_rules(acls)
    if operations:
        rule = _rule(principal, operations, topic, group, transactional_id, cluster=cluster)
        rest = tuple(each for each in rules if each != rule)
    elif topic or group or transactional_id or cluster:
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
        (rule.principal, ",".join(rule.operations), kind, name)
        for rule in read_rules(acls)
        for kind, names in (
            ("topic", rule.topics),
            ("group", rule.groups),
            ("transactional id", rule.transactional_ids),
            ("cluster", ("",) if rule.cluster else ()),
        )
        for name in names
    ]
    say(*columns(["PRINCIPAL", "OPERATIONS", "RESOURCE", "NAME"], rows))


def _rule(
    principal: str,
    operations: tuple[Operation, ...],
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    transactional_ids: tuple[str, ...],
    *,
    cluster: bool,
) -> Rule:
    try:
        return Rule(
            principal=_principal(principal),
            operations=required(operations, "operation"),
            topics=topics,
            groups=groups,
            transactional_ids=transactional_ids,
            cluster=cluster,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


def _principal(name: str) -> str:
    return name if name.startswith("User:") else f"User:{name}"
