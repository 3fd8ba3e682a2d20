"""The protocol shows and changes exactly the users in the file."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from kmr.broker import Broker
from kmr.broker.authorization.rules import Operation, Rule, write_rules
from kmr.broker.authorization.scram import hash_password
from kmr.broker.authorization.users import User, make_user, read_users, write_users

if TYPE_CHECKING:
    from pathlib import Path

Start = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]
Login = Callable[[str, str], Awaitable[Any]]

pytestmark = pytest.mark.loop_guard
HANDSHAKE, AUTHENTICATE, DESCRIBE, ALTER = 17, 36, 50, 51
SHA_256, SHA_512 = 1, 2
NONE = ErrorCode.none
UNACCEPTABLE = ErrorCode.unacceptable_credential
UNSUPPORTED = ErrorCode.unsupported_sasl_mechanism
NOT_FOUND = ErrorCode.resource_not_found
DUPLICATE = ErrorCode.duplicate_resource
REFUSED = ErrorCode.cluster_authorization_failed
SALT = b"salt of the client"

ADMIN = make_user("admin's", iterations=4096)
ALICE = make_user("wonderland", iterations=4097)
CAROL = User(scram_sha_512=hash_password("SCRAM-SHA-512", "carol's", iterations=16_384))


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """The file of users."""
    path = tmp_path / "users.json"
    write_users(path, {"admin": ADMIN, "alice": ALICE, "carol": CAROL})
    return path


@pytest.fixture
async def guarded(start: Start, users: Path) -> Broker:
    """A broker with users."""
    return await start(users_file=users)


@pytest.fixture
def login(guarded: Broker, connect: Connect) -> Login:
    """A client that has authenticated with PLAIN; None if it is refused."""
    return lambda user, password: authenticated(connect, guarded, user, password)


@pytest.fixture
async def client(login: Login) -> Any:
    """A client that may do everything."""
    return await login("admin", "admin's")


async def authenticated(connect: Connect, broker: Broker, user: str, password: str) -> Any:
    client = await connect(broker)
    assert (await client.call(HANDSHAKE, 1, mechanism="PLAIN")).error_code is NONE
    token = f"\0{user}\0{password}".encode()
    answer = await client.call(AUTHENTICATE, 2, auth_bytes=token)
    return client if answer.error_code is NONE else None


def upsertion(name: str = "bob", password: str = "builder", **values: Any) -> dict[str, Any]:
    """The upsertion that a client sends: the salted password, never the password."""
    wanted: dict[str, Any] = {"mechanism": SHA_256, "iterations": 4096, "salt": SALT} | values
    name_of_hash = "sha512" if wanted["mechanism"] == SHA_512 else "sha256"
    rounds = wanted["iterations"] if 0 < wanted["iterations"] < 20_000 else 1
    salted = hashlib.pbkdf2_hmac(name_of_hash, password.encode(), wanted["salt"], rounds)
    return {"name": name, "salted_password": salted, **wanted}


def deletion(name: str, mechanism: int = SHA_256) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


async def alter(
    client: Any, *upsertions: dict[str, Any], deletions: tuple[dict[str, Any], ...] = ()
) -> dict[str, ErrorCode]:
    """The code of each user; each has one."""
    response = await client.call(ALTER, 0, deletions=list(deletions), upsertions=list(upsertions))
    codes = {each.user: each.error_code for each in response.results}
    assert len(codes) == len(response.results)
    for each in response.results:
        assert (each.error_code is NONE) == (each.error_message is None)
    return codes


def content(path: Path) -> bytes:
    return path.read_bytes()


async def described(client: Any, *names: str) -> dict[str, Any]:
    """Mechanisms and iterations of each user, or the error."""
    response = await client.call(DESCRIBE, 0, users=[{"name": name} for name in names])
    assert (response.error_code, response.error_message) == (NONE, None)
    found: dict[str, Any] = {}
    for each in response.results:
        assert each.user not in found
        infos = {info.mechanism: info.iterations for info in each.credential_infos}
        assert (each.error_code is NONE) == (each.error_message is None) == bool(infos)
        found[each.user] = infos or each.error_code
    return found


EVERYBODY = {
    "admin": {SHA_256: 4096, SHA_512: 4096},
    "alice": {SHA_256: 4097, SHA_512: 4097},
    "carol": {SHA_512: 16_384},
}


async def test_all_users_are_described_when_none_is_named(client: Any) -> None:
    assert await described(client) == EVERYBODY
    response = await client.call(DESCRIBE, 0, users=None)
    assert {each.user for each in response.results} == set(EVERYBODY)


async def test_each_named_user_has_a_result(client: Any) -> None:
    asked = ("carol", "nobody", "alice", "", "alice")
    assert await described(client, *asked) == {
        "carol": EVERYBODY["carol"],
        "nobody": NOT_FOUND,
        "alice": DUPLICATE,
        "": NOT_FOUND,
    }


async def test_a_user_is_created_from_salt_and_salted_password(
    client: Any, login: Login, users: Path
) -> None:
    assert await login("bob", "builder") is None
    with capture_logs() as logs:
        assert await alter(client, upsertion()) == {"bob": NONE}
    said = next(each for each in logs if each["event"] == "users changed")
    assert (said["principal"], said["users"]) == ("User:admin", ["bob"])
    bob = hash_password("SCRAM-SHA-256", "builder", salt=SALT, iterations=4096)
    everybody = {"admin": ADMIN, "alice": ALICE, "carol": CAROL}
    assert read_users(users) == {**everybody, "bob": User(scram_sha_256=bob)}
    assert await login("bob", "builder") is not None
    assert await login("bob", "destroyer") is None
    assert await described(client, "bob") == {"bob": {SHA_256: 4096}}


async def test_a_second_mechanism_has_its_own_credential(client: Any, users: Path) -> None:
    await alter(client, upsertion())
    second = upsertion(mechanism=SHA_512, iterations=8192)
    assert await alter(client, second) == {"bob": NONE}
    assert await described(client, "bob") == {"bob": {SHA_256: 4096, SHA_512: 8192}}
    bob = read_users(users)["bob"]
    assert bob.scram_sha_256 == hash_password(
        "SCRAM-SHA-256", "builder", salt=SALT, iterations=4096
    )


async def test_a_new_password_replaces_the_old_one(client: Any, login: Login) -> None:
    await alter(client, upsertion())
    assert await alter(client, upsertion(password="painter")) == {"bob": NONE}
    assert await login("bob", "painter") is not None
    assert await login("bob", "builder") is None


async def test_a_user_without_credentials_is_removed(
    client: Any, login: Login, users: Path
) -> None:
    assert await alter(client, deletions=(deletion("alice"),)) == {"alice": NONE}
    assert await described(client, "alice") == {"alice": {SHA_512: 4097}}
    assert await login("alice", "wonderland") is not None
    assert await alter(client, deletions=(deletion("alice"),)) == {"alice": NOT_FOUND}
    assert await alter(client, deletions=(deletion("alice", SHA_512),)) == {"alice": NONE}
    assert await described(client, "alice") == {"alice": NOT_FOUND}
    assert await login("alice", "wonderland") is None
    assert read_users(users) == {"admin": ADMIN, "carol": CAROL}


async def test_a_connection_outlives_its_user(client: Any) -> None:
    """As in Kafka, authenticated connections stay."""
    gone = tuple(deletion("admin", each) for each in (SHA_256, SHA_512))
    for each in gone:
        assert await alter(client, deletions=(each,)) == {"admin": NONE}
    assert "admin" not in await described(client)


async def test_an_empty_alteration_changes_nothing(client: Any, users: Path) -> None:
    before = content(users)
    assert await alter(client) == {}
    assert content(users) == before


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"name": ""}, UNACCEPTABLE),
        ({"name": "a\0b"}, UNACCEPTABLE),
        ({"mechanism": 0}, UNSUPPORTED),
        ({"mechanism": 3}, UNSUPPORTED),
        ({"mechanism": -1}, UNSUPPORTED),
        ({"name": "", "mechanism": 0}, UNACCEPTABLE),
        ({"iterations": 4095}, UNACCEPTABLE),
        ({"iterations": 16_385}, UNACCEPTABLE),
        ({"iterations": -1}, UNACCEPTABLE),
        ({"iterations": 2**31 - 1}, UNACCEPTABLE),
        ({"salted_password": b""}, UNACCEPTABLE),
    ],
)
async def test_an_invalid_credential_is_refused_and_the_others_are_set(
    client: Any, users: Path, values: dict[str, Any], code: ErrorCode
) -> None:
    bad = {**upsertion(), **values}
    codes = await alter(client, upsertion("dave"), bad, upsertion("erin", iterations=16_384))
    assert codes == {"dave": NONE, bad["name"]: code, "erin": NONE}
    assert set(read_users(users)) == {"admin", "alice", "carol", "dave", "erin"}


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (deletion("bob"), NOT_FOUND),
        (deletion("carol", SHA_256), NOT_FOUND),
        (deletion(""), UNACCEPTABLE),
        (deletion("alice", 0), UNSUPPORTED),
        (deletion("nobody", 77), UNSUPPORTED),
    ],
)
async def test_an_invalid_deletion_is_refused_and_the_others_are_done(
    client: Any, wanted: dict[str, Any], code: ErrorCode
) -> None:
    codes = await alter(client, upsertion("dave"), deletions=(wanted, deletion("admin")))
    assert codes == {"dave": NONE, wanted["name"]: code, "admin": NONE}


@pytest.mark.parametrize(
    ("deletions", "upsertions"),
    [
        ((deletion("alice"), deletion("alice")), ()),
        ((deletion("alice"), deletion("alice", SHA_512)), ()),
        ((deletion("alice"),), (upsertion("alice"),)),
        ((deletion("alice"),), (upsertion("alice", mechanism=SHA_512),)),
        ((), (upsertion("alice"), upsertion("alice"))),
        ((), (upsertion("alice"), upsertion("alice", mechanism=SHA_512))),
        ((), (upsertion("alice"),) * 3),
        ((), (upsertion("alice"), upsertion("alice", iterations=1))),
    ],
)
async def test_a_user_is_altered_once_in_a_request(
    client: Any,
    users: Path,
    deletions: tuple[dict[str, Any], ...],
    upsertions: tuple[dict[str, Any], ...],
) -> None:
    """Kafka 4 counts users, not their mechanisms."""
    codes = await alter(client, *upsertions, upsertion("dave"), deletions=deletions)
    assert codes == {"alice": DUPLICATE, "dave": NONE}
    assert read_users(users)["alice"] == ALICE


async def test_the_first_error_of_a_user_is_returned(client: Any) -> None:
    empty = (upsertion(""), upsertion(""))
    unknown = (upsertion("bob", mechanism=9), upsertion("bob"))
    missing = (deletion("nobody"), deletion("nobody"))
    assert await alter(client, *empty, *unknown, deletions=(*missing, deletion(""))) == {
        "nobody": NOT_FOUND,
        "": UNACCEPTABLE,
        "bob": UNSUPPORTED,
    }


@pytest.fixture
def break_file(users: Path) -> Callable[[], Callable[[], bool]]:
    """Make the file of users invalid; return a check that it was not changed."""

    def break_it() -> Callable[[], bool]:
        users.write_text("{")
        return lambda: users.read_text() == "{"

    return break_it


async def test_an_invalid_file_is_not_overwritten(
    client: Any, break_file: Callable[[], Callable[[], bool]]
) -> None:
    is_left = break_file()
    with capture_logs() as logs:
        codes = await alter(client, upsertion(), deletions=(deletion("alice"), deletion("zoe")))
    storage = ErrorCode.kafka_storage_error
    assert codes == {"alice": storage, "zoe": NOT_FOUND, "bob": storage}
    assert is_left()
    assert any("is invalid" in each["reason"] for each in logs)
    assert await described(client) == EVERYBODY  # the last valid content


async def test_a_broker_without_users_describes_none_and_creates_none(
    broker: Broker, connect: Connect
) -> None:
    """Kafka, which always has users, describes none too."""
    client = await connect(broker)
    assert await described(client) == {}
    assert await described(client, "alice") == {"alice": NOT_FOUND}
    wanted = [upsertion(), upsertion("dave", iterations=1), upsertion("erin"), upsertion("erin")]
    response = await client.call(ALTER, 0, deletions=[deletion("alice")], upsertions=wanted)
    assert {each.user: each.error_code for each in response.results} == {
        "alice": NOT_FOUND,
        "bob": ErrorCode.security_disabled,
        "dave": UNACCEPTABLE,
        "erin": DUPLICATE,
    }
    assert any("--users" in each.error_message for each in response.results)


# -- access rules ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operations", "may_describe", "may_alter"),
    [
        ((Operation.CREATE,), False, False),
        ((Operation.DESCRIBE,), True, False),
        ((Operation.ALTER,), True, True),
        ((Operation.ALL,), True, True),
    ],
)
async def test_permissions_for_the_cluster_are_those_for_users(
    start: Start,
    connect: Connect,
    users: Path,
    operations: tuple[Operation, ...],
    may_describe: bool,
    may_alter: bool,
) -> None:
    acls = users.with_name("acls.json")
    write_rules(acls, [Rule(principal="User:alice", operations=operations, cluster=True)])
    broker = await start(users_file=users, acl_file=acls)
    client = await authenticated(connect, broker, "alice", "wonderland")

    answer = await client.call(DESCRIBE, 0, users=[{"name": "alice"}])
    assert answer.error_code is (NONE if may_describe else REFUSED)
    assert [each.user for each in answer.results] == (["alice"] if may_describe else [])

    before = content(users)
    codes = await alter(client, upsertion("zoe"), upsertion("bob"), deletions=(deletion("alice"),))
    assert codes == dict.fromkeys(("alice", "bob", "zoe"), NONE if may_alter else REFUSED)
    assert (content(users) == before) is not may_alter
