"""Users and rules in files: private, checked, read again when they change."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import msgspec
import pytest
from structlog.testing import capture_logs

from broker.errors import BrokerError
from broker.security.acls import (
    ANY_NAME,
    Authorizer,
    Operation,
    Resource,
    Rule,
    read_rules,
    write_rules,
)
from broker.security.files import WatchedFile, write_private
from broker.security.users import Users, make_user, read_users, write_users

if TYPE_CHECKING:
    from pathlib import Path

FAST = 4096
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


def test_a_file_of_users_has_no_password_and_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    path.write_text("something that everybody may read")
    path.chmod(0o644)
    write_users(path, {"alice": make_user("wonderland", iterations=FAST)})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert b"wonderland" not in path.read_bytes()
    assert sorted(read_users(path)) == ["alice"]


def test_only_the_right_password_of_an_existing_user_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    write_users(path, {"alice": make_user("wonderland", iterations=FAST)})
    users = Users(path)
    assert users.check_password("alice", "wonderland")
    assert not users.check_password("alice", "Wonderland")
    assert not users.check_password("alice", "")
    assert not users.check_password("bob", "wonderland")


def test_who_does_not_exist_cannot_be_told_from_who_does(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    write_users(path, {"alice": make_user("wonderland")})
    users = Users(path)
    real, fake = (users.credential(name, "SCRAM-SHA-256") for name in ("alice", "bob"))
    assert (len(fake.salt), fake.iterations) == (len(real.salt), real.iterations)
    assert users.credential("bob", "SCRAM-SHA-256") == fake
    assert users.credential("bob", "SCRAM-SHA-512").salt != fake.salt


def test_users_that_are_added_and_removed_hold_at_once(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    write_users(path, {"alice": make_user("a", iterations=FAST)})
    users = Users(path)
    assert users.check_password("alice", "a")
    write_users(path, {"bob": make_user("b", iterations=FAST)})
    assert users.check_password("bob", "b")
    assert not users.check_password("alice", "a")


def test_a_file_that_is_broken_later_leaves_what_it_said_before(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    write_users(path, {"alice": make_user("a", iterations=FAST)})
    users = Users(path)
    with capture_logs() as logs:
        path.write_text("{")
        assert users.check_password("alice", "a")
        assert users.check_password("alice", "a")
        path.unlink()
        assert users.check_password("alice", "a")
    assert [each["log_level"] for each in logs] == ["error", "error"]
    assert str(path) in logs[0]["reason"]


@pytest.mark.parametrize("content", ["", "{", '{"users": {"a": {}}}', '{"people": {}}'])
def test_a_file_that_makes_no_sense_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "users.json"
    path.write_text(content)
    with pytest.raises(BrokerError, match=r"users\.json makes no sense"):
        Users(path)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=r"users\.json cannot be read: No such file"):
        Users(tmp_path / "users.json")
    with pytest.raises(BrokerError, match=r"acls\.json cannot be read: No such file"):
        Authorizer(tmp_path / "acls.json")


@pytest.mark.parametrize(("password", "iterations"), [("", 4096), ("a", 4095), ("a", 10**9)])
def test_weak_credentials_are_not_made(password: str, iterations: int) -> None:
    with pytest.raises(ValueError, match=r"password|iterations"):
        make_user(password, iterations=iterations)


def test_a_file_is_looked_at_no_more_often_than_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_private(path, b"1")
    watched = WatchedFile(path, int, "the number", interval=3600)
    write_private(path, b"2")
    assert watched.content == 1


# -- rules -----------------------------------------------------------------------------------------


def test_what_no_rule_allows_is_denied(tmp_path: Path) -> None:
    path = tmp_path / "acls.json"
    write_rules(path, [ALICE])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    allows = Authorizer(path).allows
    topic, group = Resource.TOPIC, Resource.GROUP
    assert allows("User:alice", READ, topic, "orders")
    assert allows("User:alice", DESCRIBE, topic, "orders")
    assert allows("User:alice", READ, topic, "logs-eu")
    assert allows("User:alice", READ, group, "billing")
    assert allows("User:alice", READ, topic, ANY_NAME)
    assert not allows("User:alice", WRITE, topic, "orders")
    assert not allows("User:alice", READ, topic, "orders2")
    assert not allows("User:alice", READ, topic, "log")
    assert not allows("User:alice", READ, group, "orders")
    assert not allows("User:alice", READ, Resource.TRANSACTIONAL_ID, ANY_NAME)
    assert not allows("User:alice", DESCRIBE, Resource.CLUSTER, "kafka-cluster")
    assert not allows("User:bob", READ, topic, "orders")


def test_everybody_and_everything_can_be_allowed() -> None:
    everybody = Rule(principal="User:*", operations=(Operation.DESCRIBE,), topics=("*",))
    admin = Rule(principal="User:admin", operations=(Operation.ALL,), cluster=True)
    assert everybody.allows("User:x", DESCRIBE, Resource.TOPIC, "t")
    assert not everybody.allows("User:x", READ, Resource.TOPIC, "t")
    assert admin.allows("User:admin", ALTER, Resource.CLUSTER, "kafka-cluster")
    assert not admin.allows("User:admin", READ, Resource.TOPIC, "t")


def test_creating_does_not_allow_to_look() -> None:
    rule = Rule(principal="User:a", operations=(Operation.CREATE,), topics=("t",))
    assert not rule.allows("User:a", DESCRIBE, Resource.TOPIC, "t")


def test_a_changed_rule_holds_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.security.acls._LOOK_AGAIN", 0.0)
    path = tmp_path / "acls.json"
    write_rules(path, [ALICE])
    authorizer = Authorizer(path)
    assert authorizer.allows("User:alice", READ, Resource.TOPIC, "orders")
    write_rules(path, [])
    assert not authorizer.allows("User:alice", READ, Resource.TOPIC, "orders")


@pytest.mark.parametrize(
    "rule",
    [
        {"principal": "alice", "operations": ["read"], "topics": ["t"]},
        {"principal": "User:", "operations": ["read"], "topics": ["t"]},
        {"principal": "User:a", "operations": [], "topics": ["t"]},
        {"principal": "User:a", "operations": ["read"]},
        {"principal": "User:a", "operations": ["fly"], "topics": ["t"]},
        {"principal": "User:a", "operations": ["read"], "topic": ["t"]},
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(tmp_path: Path, rule: object) -> None:
    path = tmp_path / "acls.json"
    path.write_bytes(msgspec.json.encode({"allow": [rule]}))
    with pytest.raises(BrokerError, match=r"acls\.json makes no sense"):
        read_rules(path)
