"""A plugin for pytest in the process of kafka-python's tests: a broker that they start is ours.

Their fixture starts Apache Kafka from a folder of its scripts. In its place, with the same settings, comes
`kmr broker serve`; how the tests use it is theirs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

__all__: list[str] = []

_KMR: Final = str(Path(sys.executable).with_name("kmr"))
_END: Final = 30.0  # seconds

_CERTIFICATES: Final = """
openssl req -x509 -newkey rsa:2048 -nodes -days 1 -keyout ca-key -out ca-cert \
    -subj /CN=authority -addext keyUsage=critical,keyCertSign
openssl req -newkey rsa:2048 -nodes -keyout key -out request -subj /CN=localhost
printf subjectAltName=DNS:localhost > names
openssl x509 -req -days 1 -in request -CA ca-cert -CAkey ca-key -CAcreateserial -extfile names \
    -out certificate
"""


@pytest.hookimpl(trylast=True)
def pytest_sessionstart() -> None:
    """Replace what their fixture does with Kafka's scripts."""
    from test.integration.fixtures import KafkaFixture  # type: ignore[import-not-found]

    KafkaFixture.open = _open
    KafkaFixture.start = _start
    KafkaFixture.close = _close
    KafkaFixture.get_topic_names = _topics


class _Served:
    """`kmr broker serve`, as their fixture wants a child."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(  # noqa: S603  our own command
                command, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        ready = self._process.stdout.readline() if self._process.stdout else ""
        if not ready.startswith("listening on "):
            self.stop()
            raise RuntimeError(f"kmr broker serve did not start:\n{log.read_text()}")

    def dump_logs(self) -> None:
        """To stdout, which pytest shows for a test that fails."""
        sys.stdout.write(self._log.read_text())

    def stop(self) -> None:
        """SIGTERM; SIGKILL if that does not end it."""
        self._process.terminate()
        try:
            self._process.wait(_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _open(fixture: Any) -> None:
    if fixture.running:
        return
    if fixture.tmp_dir is None:
        fixture.tmp_dir = _directory()
    directory = Path(fixture.tmp_dir.strpath)
    command = [_KMR, "broker", "serve", "--data", str(directory / "data")]
    command += ["--host", fixture.host, "--port", str(fixture.port)]
    command += ["--partitions", str(fixture.partitions), "--group-min-session-timeout", "1s"]
    command += ["--acls", _rules(directory)]
    if fixture.sasl_enabled:
        command += ["--users", _users(directory, fixture.broker_user, fixture.broker_password)]
    if fixture.ssl_enabled:
        fixture.ssl_dir = str(directory)
        _run(["sh", "-ec", _CERTIFICATES], cwd=directory)
        command += ["--tls-certificate", str(directory / "certificate")]
        command += ["--tls-key", str(directory / "key")]
    fixture.child = _Served(command, directory / "broker.log")
    fixture.running = True


def _start(fixture: Any) -> None:
    _open(fixture)


def _close(fixture: Any) -> None:
    if fixture.child is not None and fixture.running and not fixture.external:
        fixture.child.stop()
        fixture.running = False
        fixture.tmp_dir.remove()


def _topics(fixture: Any) -> list[str]:
    connection = {
        "KMR_BOOTSTRAP_SERVERS": fixture.bootstrap_server(),
        "KMR_SECURITY__PROTOCOL": fixture.transport,
        "KMR_SECURITY__SASL_MECHANISM": fixture.sasl_mechanism,
        "KMR_SECURITY__SASL_USER": fixture.broker_user,
        "KMR_SECURITY__SASL_PASSWORD": fixture.broker_password,
    }
    listed = _run([_KMR, "broker", "topic", "list", "--json"], env=os.environ | connection)
    return [topic["name"] for topic in json.loads(listed)]


def _directory() -> Any:
    import py  # type: ignore[import-untyped]

    return py.path.local.mkdtemp()


def _rules(directory: Path) -> str:
    """Everybody may do everything, as in their settings."""
    rules = directory / "acls"
    everything = ["--topic", "*", "--group", "*", "--transactional-id", "*", "--cluster"]
    _run([_KMR, "broker", "acl", "allow", "User:*", "all", *everything, "--acls", str(rules)])
    return str(rules)


def _users(directory: Path, user: str, password: str) -> str:
    users = directory / "users"
    command = [_KMR, "broker", "user", "add", user, "--users", str(users)]
    _run(command, input=password.encode())
    return str(users)


def _run(command: list[str], **options: Any) -> bytes:
    """Run a program and return its output. Raises RuntimeError, with its errors, if it fails."""
    done = subprocess.run(command, capture_output=True, check=False, **options)  # noqa: S603  our own
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.decode(errors='replace')}")
    return bytes(done.stdout)
