"""kmr broker user, kmr broker acl, and the broker that they are for."""

from __future__ import annotations

import asyncio
import re
import stat
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import TopicAuthorizationFailedError
from structlog.testing import capture_logs

from broker import Broker, BrokerSettings
from broker.cli import app

if TYPE_CHECKING:
    from pathlib import Path


class Kmr(Protocol):
    """Runs `kmr broker ARGUMENTS`; returns its exit code, stdout and stderr."""

    def __call__(self, *arguments: str, stdin: str = "") -> tuple[int, str, str]: ...


@pytest.fixture
def kmr(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kmr:
    monkeypatch.setenv("KMR_BROKER__USERS_FILE", str(tmp_path / "users.json"))
    monkeypatch.setenv("KMR_BROKER__ACL_FILE", str(tmp_path / "acls.json"))

    def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        source = tmp_path / "stdin"
        source.write_text(stdin)
        capsys.readouterr()
        with source.open() as file, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", file)
            code = app(
                arguments, exit_on_error=False, print_error=False, result_action="return_value"
            )
        return code, *capsys.readouterr()

    return run


def test_users_are_added_listed_and_removed(kmr: Kmr, tmp_path: Path) -> None:
    assert kmr("user", "add", "bob", stdin="secret\n") == (0, "bob: added\n", "")
    assert kmr("user", "add", "alice", "--iterations", "4096", stdin="other") == (
        0,
        "alice: added\n",
        "",
    )
    path = tmp_path / "users.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "secret" not in path.read_text()
    assert kmr("user", "list") == (0, "alice\nbob\n", "")
    assert kmr("user", "remove", "bob") == (0, "bob: removed\n", "")
    assert kmr("user", "list") == (0, "alice\n", "")


def test_an_existing_user_is_replaced_only_when_told(kmr: Kmr, tmp_path: Path) -> None:
    kmr("user", "add", "alice", stdin="one\n")
    before = (tmp_path / "users.json").read_bytes()
    code, _, said = kmr("user", "add", "alice", stdin="two\n")
    assert (code, (tmp_path / "users.json").read_bytes()) == (1, before)
    assert "--replace" in said
    assert kmr("user", "add", "alice", "--replace", stdin="two\n")[0] == 0
    assert (tmp_path / "users.json").read_bytes() != before


@pytest.mark.parametrize(
    ("arguments", "stdin", "code"),
    [
        (["add", "alice"], "\n", 2),
        (["add", ""], "secret\n", 2),
        (["add", "alice", "--iterations", "10"], "secret\n", 2),
        (["remove", "alice"], "", 1),
        (["list"], "", 1),
    ],
)
def test_what_makes_no_sense_for_users_is_one_line(
    kmr: Kmr, arguments: list[str], stdin: str, code: int
) -> None:
    ended, out, said = kmr("user", *arguments, stdin=stdin)
    assert (ended, out) == (code, "")
    assert re.fullmatch(r"kmr broker: .+\n", said)


def test_rules_are_allowed_listed_and_revoked(kmr: Kmr) -> None:
    assert kmr("acl", "allow", "alice", "read", "write", "--topic", "orders*", "--group", "g") == (
        0,
        "User:alice: allowed\n",
        "",
    )
    kmr("acl", "allow", "User:admin", "all", "--cluster", "--transactional-id", "*")
    kmr("acl", "allow", "alice", "delete", "--topic", "orders-1")
    refused = ("alice", "all", "--topic", "orders-2", "--host", "10.0.0.1", "--host", "::1")
    assert kmr("acl", "deny", *refused)[:2] == (0, "User:alice: denied\n")
    _, out, _ = kmr("acl", "list")
    assert [line.split() for line in out.splitlines()] == [
        ["PRINCIPAL", "PERMISSION", "OPERATIONS", "RESOURCE", "NAME", "HOST"],
        ["User:alice", "allow", "read,write", "topic", "orders*", "*"],
        ["User:alice", "allow", "read,write", "group", "g", "*"],
        ["User:admin", "allow", "all", "transactional", "id", "*", "*"],
        ["User:admin", "allow", "all", "cluster", "*"],
        ["User:alice", "allow", "delete", "topic", "orders-1", "*"],
        ["User:alice", "deny", "all", "topic", "orders-2", "10.0.0.1,::1"],
    ]
    assert kmr("acl", "revoke", *refused)[0] == 1  # nothing of the kind is allowed
    assert kmr("acl", "revoke", "alice", "--denied")[0] == 2
    assert kmr("acl", "revoke", *refused, "--denied")[0] == 0
    assert "deny" not in kmr("acl", "list")[1]
    assert kmr("acl", "revoke", "alice", "delete", "--topic", "orders-1")[0] == 0
    assert "delete" not in kmr("acl", "list")[1]
    assert kmr("acl", "revoke", "alice") == (0, "User:alice: 1 rules removed\n", "")
    assert "alice" not in kmr("acl", "list")[1]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["allow", "alice", "--topic", "t"], 2),
        (["allow", "alice", "read"], 2),
        (["revoke", "alice", "read", "--topic", "t"], 1),
        (["revoke", "alice", "--topic", "t"], 1),
        (["deny", "alice", "read"], 2),
        (["list"], 1),
    ],
)
def test_what_makes_no_sense_for_rules_is_one_line(
    kmr: Kmr, arguments: list[str], code: int
) -> None:
    ended, out, said = kmr("acl", *arguments)
    assert (ended, out) == (code, "")
    assert re.fullmatch(r"kmr broker: .+\n", said)


def test_the_same_rule_is_not_kept_twice(kmr: Kmr) -> None:
    rule = ("acl", "allow", "alice", "read", "--topic", "t")
    assert kmr(*rule)[0] == 0
    assert kmr(*rule)[0] == 1


async def test_a_broker_obeys_the_files_that_the_commands_make(kmr: Kmr, tmp_path: Path) -> None:
    def prepare() -> None:
        kmr("user", "add", "alice", stdin="wonderland\n")
        kmr("acl", "allow", "alice", "write", "--topic", "mine")

    await asyncio.to_thread(prepare)
    settings = BrokerSettings(
        data_dir=tmp_path / "data",
        port=0,
        users_file=tmp_path / "users.json",
        acl_file=tmp_path / "acls.json",
    )
    async with Broker(settings) as broker:
        await broker.topics.create("mine")
        await broker.topics.create("other")
        async with AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_plain_username="alice",
            sasl_plain_password="wonderland",
        ) as producer:
            await producer.send_and_wait("mine", b"value")
            with pytest.raises(TopicAuthorizationFailedError):
                await producer.send_and_wait("other", b"value")


async def test_other_machines_are_not_let_in_by_accident(tmp_path: Path) -> None:
    """As a process: what it says, and its exit code."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from broker.cli import app; app()", "serve"),
        *("--data", str(tmp_path), "--port", "0", "--host", "0.0.0.0"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode == 2
    text = said.decode()
    assert text.startswith("kmr broker: --host '0.0.0.0' lets other machines connect")
    for flag in ("--tls-certificate", "--tls-key", "--users", "--tls-client-ca", "--insecure"):
        assert flag in text
    assert text.count("\n") == 1
    assert not list(tmp_path.iterdir())  # noqa: ASYNC240


# -- commands that talk to a broker ----------------------------------------------------------------


class Refused(NamedTuple):
    """What is wrong with a client, and what it is told."""

    broker: str
    flags: str
    said: str


REFUSED = [
    Refused("users", "SASL_PLAINTEXT wrong", "wrong user or password"),
    Refused("users", "PLAINTEXT", "may want a user and a password"),
    Refused("tls", "PLAINTEXT", "may want TLS"),
    Refused("tls", "SSL", "no TLS connection came about"),
    Refused("tls mutual", "SSL trusted", "certificate of ours"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case.flags}: {case.said}")
async def test_a_command_says_why_it_is_not_let_in(
    kmr: Kmr, tmp_path: Path, certificates: Any, case: Refused
) -> None:
    users = tmp_path / "users.json"
    await asyncio.to_thread(kmr, "user", "add", "alice", stdin="wonderland\n")
    settings = BrokerSettings(
        data_dir=tmp_path / "data",
        port=0,
        users_file=users if "users" in case.broker else None,
        tls_certificate=certificates.certificate if "tls" in case.broker else None,
        tls_key=certificates.key if "tls" in case.broker else None,
        tls_client_ca=certificates.authority if "mutual" in case.broker else None,
    )
    protocol, _, extra = case.flags.partition(" ")
    flags = ["--security-protocol", protocol]
    if extra == "wrong":
        flags += ["--security-sasl-user", "alice", "--security-sasl-password", "x"]
    elif extra == "trusted":
        flags += ["--security-ssl-cafile", str(certificates.authority)]
    with capture_logs():
        async with Broker(settings) as broker:
            arguments = ["topic", "list", "-b", broker.bootstrap_servers, *flags]
            code, out, said = await asyncio.to_thread(kmr, *arguments)
    assert (code, out) == (1, "")
    assert case.said in said
    assert said.count("\n") == 1


async def test_commands_are_let_in_with_the_right_flags(
    kmr: Kmr, tmp_path: Path, certificates: Any
) -> None:
    await asyncio.to_thread(kmr, "user", "add", "alice", stdin="wonderland\n")
    settings = BrokerSettings(
        data_dir=tmp_path / "data",
        port=0,
        users_file=tmp_path / "users.json",
        tls_certificate=certificates.certificate,
        tls_key=certificates.key,
        tls_client_ca=certificates.authority,
    )
    with capture_logs():
        async with Broker(settings) as broker:
            await broker.topics.create("t")
            code, out, said = await asyncio.to_thread(
                kmr,
                *("topic", "list", "-b", broker.bootstrap_servers),
                *("--security-protocol", "SASL_SSL", "--security-sasl-mechanism", "SCRAM-SHA-256"),
                *("--security-sasl-user", "alice", "--security-sasl-password", "wonderland"),
                *("--security-ssl-cafile", str(certificates.authority)),
                *("--security-ssl-certfile", str(certificates.client_certificate)),
                *("--security-ssl-keyfile", str(certificates.client_key)),
            )
    assert (code, said) == (0, "")
    assert out.splitlines()[1].split() == ["t", "1"]
