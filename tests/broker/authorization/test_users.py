"""The file of users: private, checked, read again when it changes; passwords and alterations."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from kmr.broker.authorization.rules import (
    Authorizer,
)
from kmr.broker.authorization.scram import hash_password
from kmr.broker.authorization.users import (
    User,
    Users,
    make_user,
    read_users,
    write_users,
)
from kmr.broker.errors import BrokerError

if TYPE_CHECKING:
    from pathlib import Path

FAST = 4096
HOST = "10.0.0.1"


def test_a_file_of_users_holds_no_password_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    path.write_text("readable by everyone")
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


def test_clients_cannot_find_out_which_users_exist(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    write_users(path, {"alice": make_user("wonderland")})
    users = Users(path)
    real, fake = (users.credential(name, "SCRAM-SHA-256") for name in ("alice", "bob"))
    assert (len(fake.salt), fake.iterations) == (len(real.salt), real.iterations)
    assert users.credential("bob", "SCRAM-SHA-256") == fake
    assert users.credential("bob", "SCRAM-SHA-512").salt != fake.salt


def test_added_and_removed_users_apply_at_once(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    write_users(path, {"alice": make_user("a", iterations=FAST)})
    users = Users(path)
    assert users.check_password("alice", "a")
    write_users(path, {"bob": make_user("b", iterations=FAST)})
    assert users.check_password("bob", "b")
    assert not users.check_password("alice", "a")


def test_a_file_that_becomes_unreadable_keeps_its_last_content_in_force(tmp_path: Path) -> None:
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


def test_a_file_of_an_earlier_version_is_read_and_written_unchanged(tmp_path: Path) -> None:
    """Its users have both mechanisms."""
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


def test_the_password_of_either_mechanism_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    old, new = make_user("old", iterations=FAST), make_user("new", iterations=FAST)
    write_users(path, {"alice": User(new.scram_sha_256, old.scram_sha_512)})
    users = Users(path)
    assert [users.check_password("alice", each) for each in ("old", "new", "none")] == [
        True,
        True,
        False,
    ]


def with_iterations(iterations: int) -> str:
    credential = {"salt": "YQ==", "iterations": iterations, "stored_key": "", "server_key": ""}
    return json.dumps({"users": {"a": {"scram_sha_256": credential}}})


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", '{"users": {"a": {}}}', '{"people": {}}'),
        *(with_iterations(each) for each in (-5, 0, 2_000_000_000)),  # the last: 20 minutes a login
    ],
)
def test_an_invalid_file_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "users.json"
    path.write_text(content)
    with pytest.raises(BrokerError, match=r"users\.json is invalid"):
        Users(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=r"users\.json cannot be read: No such file"):
        Users(tmp_path / "users.json")
    with pytest.raises(BrokerError, match=r"acls\.json cannot be read: No such file"):
        Authorizer(tmp_path / "acls.json")


@pytest.mark.parametrize(("password", "iterations"), [("", 4096), ("a", 4095), ("a", 10**9)])
def test_weak_credentials_are_refused(password: str, iterations: int) -> None:
    with pytest.raises(ValueError, match=r"password|iterations"):
        make_user(password, iterations=iterations)
