"""kmr doctor, against the broker of this process."""

from __future__ import annotations

import json
from functools import partial
from importlib.metadata import EntryPoint, EntryPoints
from typing import TYPE_CHECKING, Any

import pytest
from anyio import to_thread

from kmr.cli.root import GROUP, run_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kmr.broker import Broker

    from ..conftest import CreateTopic

COMMANDS = EntryPoints([EntryPoint("doctor", "kmr.cli.doctor:doctor", GROUP)])


@pytest.fixture
def doctor(capfd: pytest.CaptureFixture[str], folder: Path) -> Callable[..., Any]:
    """Runs `kmr doctor` in a thread, because the broker is on this event loop."""

    async def run(*arguments: str) -> tuple[int, str, str]:
        command = ("doctor", *arguments, "--topic", "hits", "--group", "g")
        code = await to_thread.run_sync(partial(run_command, command, COMMANDS))
        return code, *capfd.readouterr()

    return run


async def test_doctor_tells_each_finding_with_its_remedy_and_fails_only_for_problems(
    doctor: Callable[..., Any], broker: Broker, create_topic: CreateTopic
) -> None:
    servers = ("--bootstrap-servers", broker.bootstrap_servers)
    code, out, err = await doctor("flow:typed", *servers)
    assert code == 1, err
    assert "PROBLEM  topic hits: topic hits does not exist\n" in out
    assert "         -> create it, or correct its name\n" in out
    assert "1 problem, 0 warnings\n" in out
    await create_topic("hits")
    code, out, err = await doctor("flow:typed", *servers)
    assert code == 0, out + err
    assert "ok       topic hits: we may read its 1 partition\n" in out


async def test_doctor_prints_json_for_programs(
    doctor: Callable[..., Any], broker: Broker, create_topic: CreateTopic
) -> None:
    await create_topic("hits")
    flags = ("--bootstrap-servers", broker.bootstrap_servers, "--format", "json")
    code, out, _ = await doctor("flow:typed", *flags)
    found = json.loads(out[out.index("{\n") :])
    assert (code, found["problems"]) == (0, 0)
    assert {"level": "ok", "subject": "reduce-1", "text": "Collect opens", "remedy": ""} in found[
        "findings"
    ]


async def test_doctor_refuses_wrong_usage(doctor: Callable[..., Any]) -> None:
    assert (await doctor("flow:typed", "--session-timeout", "never"))[0] == 2
    assert (await doctor())[0] == 2
