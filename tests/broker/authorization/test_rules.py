"""Rules in a file, and as bindings: what they allow and deny, as a whole and one permission at a time."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from kmr.broker.authorization.rules import (
    ANY_NAME,
    Authorizer,
    Denial,
    Operation,
    Question,
    Resource,
    Rule,
    read_rules,
    write_rules,
)
from kmr.broker.errors import BrokerError

if TYPE_CHECKING:
    from pathlib import Path

FAST = 4096
HOST = "10.0.0.1"
ALICE = Rule(
    principal="User:alice",
    operations=(Operation.READ,),
    topics=("orders", "logs-*"),
    groups=("billing",),
)
READ, WRITE, DESCRIBE, ALTER = (
    Operation.READ,
    Operation.WRITE,
    Operation.DESCRIBE,
    Operation.ALTER,
)
NAMES = st.sampled_from(["*", "a", "a*", "ab", "ab*", "**"])
RULES = st.lists(
    st.builds(
        lambda kind, **values: kind(**values),
        kind=st.sampled_from([Rule, Denial]),
        principal=st.sampled_from(["User:alice", "User:*"]),
        operations=st.lists(st.sampled_from(Operation), min_size=1, max_size=3).map(tuple),
        topics=st.lists(NAMES, min_size=1, max_size=3).map(tuple),
        groups=st.lists(NAMES, max_size=2).map(tuple),
        transactional_ids=st.lists(NAMES, max_size=1).map(tuple),
        cluster=st.booleans(),
        hosts=st.sampled_from([("*",), ("10.0.0.1",), ("10.0.0.1", "*")]),
    ),
    max_size=4,
)


def test_operations_that_no_rule_allows_are_denied(tmp_path: Path) -> None:
    path = tmp_path / "acls.json"
    write_rules(path, [ALICE])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    allows = Authorizer(path).allows
    topic, group = Resource.TOPIC, Resource.GROUP
    assert allows(Question("User:alice", READ, topic, "orders", HOST))
    assert allows(Question("User:alice", DESCRIBE, topic, "orders", HOST))
    assert allows(Question("User:alice", READ, topic, "logs-eu", HOST))
    assert allows(Question("User:alice", READ, group, "billing", HOST))
    assert allows(Question("User:alice", READ, topic, ANY_NAME, HOST))
    assert not allows(Question("User:alice", WRITE, topic, "orders", HOST))
    assert not allows(Question("User:alice", READ, topic, "orders2", HOST))
    assert not allows(Question("User:alice", READ, topic, "log", HOST))
    assert not allows(Question("User:alice", READ, group, "orders", HOST))
    assert not allows(Question("User:alice", READ, Resource.TRANSACTIONAL_ID, ANY_NAME, HOST))
    assert not allows(Question("User:alice", DESCRIBE, Resource.CLUSTER, "kafka-cluster", HOST))
    assert not allows(Question("User:bob", READ, topic, "orders", HOST))


def test_a_rule_may_be_for_every_user_and_every_operation() -> None:
    everybody = Rule(principal="User:*", operations=(Operation.DESCRIBE,), topics=("*",))
    admin = Rule(principal="User:admin", operations=(Operation.ALL,), cluster=True)
    assert everybody.allows(Question("User:x", DESCRIBE, Resource.TOPIC, "t", HOST))
    assert not everybody.allows(Question("User:x", READ, Resource.TOPIC, "t", HOST))
    assert admin.allows(Question("User:admin", ALTER, Resource.CLUSTER, "kafka-cluster", HOST))
    assert not admin.allows(Question("User:admin", READ, Resource.TOPIC, "t", HOST))


def test_create_does_not_imply_describe() -> None:
    rule = Rule(principal="User:a", operations=(Operation.CREATE,), topics=("t",))
    assert not rule.allows(Question("User:a", DESCRIBE, Resource.TOPIC, "t", HOST))


def test_a_denial_overrides_every_rule(tmp_path: Path) -> None:
    path = tmp_path / "acls.json"
    denial = Denial(principal="User:*", operations=(READ,), topics=("orders-secret*",))
    everything = Rule(principal="User:alice", operations=(Operation.ALL,), topics=("*",))
    write_rules(path, [denial, everything])
    assert read_rules(path) == (everything, denial)
    allows = Authorizer(path).allows
    topic = Resource.TOPIC
    assert allows(Question("User:alice", READ, topic, "orders", HOST))
    assert not allows(Question("User:alice", READ, topic, "orders-secret-1", HOST))
    assert allows(Question("User:alice", WRITE, topic, "orders-secret-1", HOST))
    assert allows(Question("User:alice", DESCRIBE, topic, "orders-secret-1", HOST))
    assert not allows(Question("User:bob", READ, topic, "orders", HOST))  # a denial allows nothing
    write_rules(path, [replace(denial, operations=(Operation.ALL,)), everything])
    assert not Authorizer(path).allows(
        Question("User:alice", DESCRIBE, topic, "orders-secret-1", HOST)
    )


@pytest.mark.parametrize(
    ("allowed", "denied", "some"),
    [
        (("*",), ("a",), True),
        (("*",), ("*",), False),
        (("a*",), ("*",), False),
        (("ab*",), ("a*",), False),
        (("a*",), ("ab*",), True),
        (("ab",), ("a*",), False),
        (("ab",), ("ab",), False),
        (("ab",), ("abc",), True),
        (("ab", "c"), ("ab",), True),
    ],
)
def test_any_resource_must_be_one_that_is_not_denied(
    tmp_path: Path, allowed: tuple[str, ...], denied: tuple[str, ...], some: bool
) -> None:
    path = tmp_path / "acls.json"
    rules = [
        Rule(principal="User:alice", operations=(WRITE,), topics=allowed),
        Rule(principal="User:bob", operations=(WRITE,), topics=("elsewhere",)),
        Denial(principal="User:alice", operations=(WRITE,), topics=denied),
    ]
    write_rules(path, rules)
    question = Question("User:alice", WRITE, Resource.TOPIC, ANY_NAME, HOST)
    assert Authorizer(path).allows(question) is some


def test_a_super_user_is_allowed_everything_over_every_denial(tmp_path: Path) -> None:
    path = tmp_path / "acls.json"
    write_rules(path, [Denial(principal="User:*", operations=(Operation.ALL,), topics=("*",))])
    allows = Authorizer(path, super_users=["User:root", "User:admin"]).allows
    for name in ("t", ANY_NAME):
        assert allows(Question("User:root", WRITE, Resource.TOPIC, name, HOST))
        assert allows(Question("User:admin", WRITE, Resource.TOPIC, name, HOST))
        assert not allows(Question("User:alice", WRITE, Resource.TOPIC, name, HOST))


def test_everyone_is_allowed_what_no_rule_names_if_that_is_set(tmp_path: Path) -> None:
    path = tmp_path / "acls.json"
    write_rules(
        path,
        [
            Rule(principal="User:bob", operations=(READ,), topics=("orders",), hosts=("::1",)),
            Denial(principal="User:bob", operations=(WRITE,), topics=("logs-*",)),
        ],
    )
    allows = Authorizer(path, allow_if_no_acl=True).allows
    answers = {
        (resource, name): allows(Question("User:alice", READ, resource, name, HOST))
        for resource in (Resource.TOPIC, Resource.GROUP)
        for name in ("orders", "orders-2", "logs-a", "logs", ANY_NAME)
    }
    assert [name for name, allowed in answers.items() if not allowed] == [
        (Resource.TOPIC, "orders"),
        (Resource.TOPIC, "logs-a"),
    ]
    write_rules(path, [Rule(principal="User:bob", operations=(READ,), topics=("*",))])
    every = Authorizer(path, allow_if_no_acl=True).allows
    assert not every(Question("User:alice", READ, Resource.TOPIC, ANY_NAME, HOST))
    assert every(Question("User:alice", READ, Resource.GROUP, ANY_NAME, HOST))


def test_a_rule_may_be_limited_to_hosts(tmp_path: Path) -> None:
    path = tmp_path / "acls.json"
    rule = Rule(principal="User:a", operations=(READ,), topics=("*",), hosts=(HOST, "::1"))
    everywhere = Rule(principal="User:b", operations=(READ,), topics=("*",))
    denial = Denial(principal="User:b", operations=(READ,), topics=("t",), hosts=(HOST,))
    write_rules(path, [rule, everywhere, denial])
    allows = Authorizer(path).allows
    for host, of_a, of_b in ((HOST, True, False), ("::1", True, True), ("10.0.0.2", False, True)):
        assert allows(Question("User:a", READ, Resource.TOPIC, "t", host)) is of_a
        assert allows(Question("User:b", READ, Resource.TOPIC, "t", host)) is of_b


def test_configurations_have_operations_of_their_own() -> None:
    def may(operation: Operation, wanted: Operation) -> bool:
        rule = Rule(principal="User:a", operations=(operation,), topics=("t",))
        return rule.allows(Question("User:a", wanted, Resource.TOPIC, "t", HOST))

    assert not may(ALTER, Operation.ALTER_CONFIGS)
    assert not may(DESCRIBE, Operation.DESCRIBE_CONFIGS)
    assert may(Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS)
    assert not may(Operation.ALTER_CONFIGS, DESCRIBE)
    assert may(Operation.ALL, Operation.ALTER_CONFIGS)


def test_a_changed_rule_applies_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kmr.broker.authorization.rules._CHECK_INTERVAL", 0.0)
    path = tmp_path / "acls.json"
    write_rules(path, [ALICE])
    authorizer = Authorizer(path)
    assert authorizer.allows(Question("User:alice", READ, Resource.TOPIC, "orders", HOST))
    write_rules(path, [])
    assert not authorizer.allows(Question("User:alice", READ, Resource.TOPIC, "orders", HOST))


@pytest.mark.parametrize(
    "rule",
    [
        {"principal": "alice", "operations": ["read"], "topics": ["t"]},
        {"principal": "User:", "operations": ["read"], "topics": ["t"]},
        {"principal": "User:a", "operations": [], "topics": ["t"]},
        {"principal": "User:a", "operations": ["read"]},
        {"principal": "User:a", "operations": ["fly"], "topics": ["t"]},
        {"principal": "User:a", "operations": ["read"], "topic": ["t"]},
        {"principal": "User:a", "operations": ["read"], "topics": ["t"], "hosts": []},
        {"principal": "User:a", "operations": ["read"], "topics": ["t"], "hosts": [""]},
    ],
)
def test_an_invalid_rule_is_refused(tmp_path: Path, rule: object) -> None:
    path = tmp_path / "acls.json"
    for rules in ({"allow": [rule]}, {"allow": [], "deny": [rule]}):
        path.write_bytes(msgspec.json.encode(rules))
        with pytest.raises(BrokerError, match=r"acls\.json is invalid"):
            read_rules(path)


# -- bindings ----------------------------------------------------------------------------------------
