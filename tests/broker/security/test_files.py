"""Users and rules in files: private, checked, read again when they change."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event
from typing import TYPE_CHECKING

import msgspec
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from broker.errors import BrokerError
from broker.security.acls import (
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
from broker.security.files import WatchedFile, write_private
from broker.security.scram import hash_password
from broker.security.users import (
    Alteration,
    User,
    Users,
    altered,
    make_user,
    read_users,
    write_users,
)

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


EARLIER = """{
  "users": {
    "alice": {
      "scram_sha_256": {
        "salt": "MDEyMzQ1Njc4OQ==",
        "iterations": 4096,
        "stored_key": "PVY0Ag57kXo75soTLH61ponacJhJZl7abaudmNrY8jw=",
        "server_key": "S2bwWJnYbROj1vUnJ9ueXLuzzNPMjvcAuLmG79p6mSU="
      },
      "scram_sha_512": {
        "salt": "OTg3NjU0MzIxMA==",
        "iterations": 4096,
        "stored_key": "SW9+wNaBrN8UdBh4J8qgGJe1EgChrmKE52sue7Ov\
zBeIdUnWhokgIzPKOrwfeUCGMe1kaGPABnAAvefU/xzGyQ==",
        "server_key": "ZjwThgCCMjEcJd0PuP7OjF4ssx9z5eIH9/lCtR0g\
DVFKHZnp4KP7hTFQA+XNYLFSEemOYUxnWHa9lMjouEuGeA=="
      }
    }
  }
}
"""


def test_a_file_of_an_earlier_version_is_read_and_written_as_it_was(tmp_path: Path) -> None:
    """Its users have always had both mechanisms."""
    path = tmp_path / "users.json"
    path.write_text(EARLIER)
    assert Users(path).check_password("alice", "wonderland")
    write_users(path, read_users(path))
    assert path.read_text() == EARLIER


def test_a_user_may_have_one_mechanism_only(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    one = User(scram_sha_256=hash_password("SCRAM-SHA-256", "wonderland", iterations=FAST))
    write_users(path, {"alice": one})
    assert "scram_sha_512" not in path.read_text()
    assert read_users(path) == {"alice": one}
    users = Users(path)
    assert users.credential("alice", "SCRAM-SHA-256") == one.scram_sha_256
    unprovable = users.credential("alice", "SCRAM-SHA-512")
    assert unprovable == users.credential("alice", "SCRAM-SHA-512")
    assert unprovable.salt != users.credential("bob", "SCRAM-SHA-512").salt
    assert users.check_password("alice", "wonderland")
    assert not users.check_password("alice", "looking glass")


def test_a_password_for_either_mechanism_is_one_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    old, new = make_user("old", iterations=FAST), make_user("new", iterations=FAST)
    write_users(path, {"alice": User(new.scram_sha_256, old.scram_sha_512)})
    users = Users(path)
    assert [users.check_password("alice", each) for each in ("old", "new", "none")] == [
        True,
        True,
        False,
    ]


def test_users_are_altered_one_credential_at_a_time() -> None:
    alice, bob = make_user("a", iterations=FAST), make_user("b", iterations=FAST)
    users = {"alice": alice, "bob": bob, "carol": User(scram_sha_256=bob.scram_sha_256)}
    alterations = {
        "alice": Alteration("SCRAM-SHA-256", bob.scram_sha_256),
        "bob": Alteration("SCRAM-SHA-512", None),
        "carol": Alteration("SCRAM-SHA-256", None),
        "dave": Alteration("SCRAM-SHA-512", alice.scram_sha_512),
        "erin": Alteration("SCRAM-SHA-512", None),
    }
    assert altered(users, alterations) == {
        "alice": User(bob.scram_sha_256, alice.scram_sha_512),
        "bob": User(scram_sha_256=bob.scram_sha_256),
        "dave": User(scram_sha_512=alice.scram_sha_512),
    }
    assert users["alice"] is alice


def test_a_change_through_the_broker_keeps_what_others_have_written(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    alice, bob = make_user("a", iterations=FAST), make_user("b", iterations=FAST)
    write_users(path, {"alice": alice})
    users = Users(path)
    write_users(path, {"alice": alice, "bob": bob})
    users.alter({"alice": Alteration("SCRAM-SHA-256", None)})
    expected = {"alice": User(scram_sha_512=alice.scram_sha_512), "bob": bob}
    assert read_users(path) == users.by_name == expected
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_who_reads_slowly_does_not_bring_back_what_was_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_private(path, b"1")
    slow, go_on = Event(), Event()

    def parse(data: bytes) -> int:
        if data == b"2":
            slow.set()
            assert go_on.wait(60)
        return int(data)

    watched = WatchedFile(path, parse, "the number")
    with ThreadPoolExecutor(2) as threads:
        write_private(path, b"2")
        first = threads.submit(lambda: watched.content)
        assert slow.wait(60)
        write_private(path, b"3")
        second = threads.submit(lambda: watched.content)
        wait([second], timeout=0.1)  # what would be wrong is done by then
        go_on.set()
        assert first.result(60) in (2, 3)
        assert second.result(60) == 3
    assert watched.content == 3


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


def test_everybody_and_everything_can_be_allowed() -> None:
    everybody = Rule(principal="User:*", operations=(Operation.DESCRIBE,), topics=("*",))
    admin = Rule(principal="User:admin", operations=(Operation.ALL,), cluster=True)
    assert everybody.allows(Question("User:x", DESCRIBE, Resource.TOPIC, "t", HOST))
    assert not everybody.allows(Question("User:x", READ, Resource.TOPIC, "t", HOST))
    assert admin.allows(Question("User:admin", ALTER, Resource.CLUSTER, "kafka-cluster", HOST))
    assert not admin.allows(Question("User:admin", READ, Resource.TOPIC, "t", HOST))


def test_creating_does_not_allow_to_look() -> None:
    rule = Rule(principal="User:a", operations=(Operation.CREATE,), topics=("t",))
    assert not rule.allows(Question("User:a", DESCRIBE, Resource.TOPIC, "t", HOST))


def test_what_one_rule_denies_no_other_can_allow(tmp_path: Path) -> None:
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
def test_any_resource_is_one_that_is_not_denied(
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


def test_a_rule_may_hold_for_clients_of_some_hosts(tmp_path: Path) -> None:
    path = tmp_path / "acls.json"
    rule = Rule(principal="User:a", operations=(READ,), topics=("*",), hosts=(HOST, "::1"))
    everywhere = Rule(principal="User:b", operations=(READ,), topics=("*",))
    denial = Denial(principal="User:b", operations=(READ,), topics=("t",), hosts=(HOST,))
    write_rules(path, [rule, everywhere, denial])
    allows = Authorizer(path).allows
    for host, of_a, of_b in ((HOST, True, False), ("::1", True, True), ("10.0.0.2", False, True)):
        assert allows(Question("User:a", READ, Resource.TOPIC, "t", host)) is of_a
        assert allows(Question("User:b", READ, Resource.TOPIC, "t", host)) is of_b


def test_configurations_are_operations_of_their_own() -> None:
    def may(operation: Operation, wanted: Operation) -> bool:
        rule = Rule(principal="User:a", operations=(operation,), topics=("t",))
        return rule.allows(Question("User:a", wanted, Resource.TOPIC, "t", HOST))

    assert not may(ALTER, Operation.ALTER_CONFIGS)
    assert not may(DESCRIBE, Operation.DESCRIBE_CONFIGS)
    assert may(Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS)
    assert not may(Operation.ALTER_CONFIGS, DESCRIBE)
    assert may(Operation.ALL, Operation.ALTER_CONFIGS)


def test_a_changed_rule_holds_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.security.acls._LOOK_AGAIN", 0.0)
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
def test_a_rule_that_makes_no_sense_is_refused(tmp_path: Path, rule: object) -> None:
    path = tmp_path / "acls.json"
    for rules in ({"allow": [rule]}, {"allow": [], "deny": [rule]}):
        path.write_bytes(msgspec.json.encode(rules))
        with pytest.raises(BrokerError, match=r"acls\.json makes no sense"):
            read_rules(path)
