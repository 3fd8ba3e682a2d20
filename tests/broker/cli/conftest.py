"""The command line against a broker that runs in a thread of its own."""

from __future__ import annotations

import sys
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pytest
import structlog
from anyio.from_thread import start_blocking_portal

from kmr.broker import Broker, BrokerSettings
from kmr.broker.cli import app

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _run(arguments: tuple[str, ...]) -> int:
    """Run a command as a process does: in an empty context, although a test may call it in one of its own."""
    call = partial(app, exit_on_error=False, print_error=False, result_action="return_value")
    code: int = Context().run(call, arguments)
    return code


class Result(NamedTuple):
    """The exit code and output of a command."""

    code: int
    out: bytes
    err: bytes

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()


class Kmr(Protocol):
    """Runs `kmr broker ARGUMENTS`."""

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Result: ...


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that all tests of a module share: each uses topics of its own."""
    settings = BrokerSettings(
        data_dir=tmp_path_factory.mktemp("broker"), port=0, auto_create_topics=False
    )
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Broker(settings)) as broker,
    ):
        yield broker.bootstrap_servers
    structlog.reset_defaults()


@pytest.fixture
def kmr(
    servers: str,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Kmr:
    """Runs a command in this process, with the broker of `servers`."""
    monkeypatch.setenv("KMR_BOOTSTRAP_SERVERS", servers)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str, stdin: bytes = b"") -> Result:
        source = tmp_path / "stdin"
        source.write_bytes(stdin)
        capfdbinary.readouterr()
        with source.open() as file, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", file)
            code = _run(arguments)
        captured = capfdbinary.readouterr()
        return Result(code, captured.out, captured.err)

    return run


class Offline(Protocol):
    """Runs `kmr broker ARGUMENTS`; returns its exit code, stdout and stderr."""

    def __call__(self, *arguments: str, stdin: str = "") -> tuple[int, str, str]: ...


@pytest.fixture
def offline(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Offline:
    """Runs a command in this process, without a broker, with files of users and rules."""
    monkeypatch.setenv("KMR_BROKER__USERS_FILE", str(tmp_path / "users.json"))
    monkeypatch.setenv("KMR_BROKER__ACL_FILE", str(tmp_path / "acls.json"))

    def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        source = tmp_path / "stdin"
        source.write_text(stdin)
        capsys.readouterr()
        with source.open() as file, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", file)
            code = _run(arguments)
        return code, *capsys.readouterr()

    return run
