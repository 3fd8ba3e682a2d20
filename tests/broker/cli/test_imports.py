"""What commands import, each in a fresh process."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SERVE = """
import asyncio, pathlib, struct, sys
import kmr.broker.cli.serve
from kmr.broker import Broker, BrokerSettings

API_VERSIONS, VERSION, NUMBER, NO_CLIENT_ID = 18, 0, 1, -1

async def main():
    async with Broker(BrokerSettings(data_dir=pathlib.Path(sys.argv[1]), port=0)) as broker:
        reader, writer = await asyncio.open_connection(*broker.bootstrap_servers.split(":"))
        writer.write(struct.pack(">ihhih", 10, API_VERSIONS, VERSION, NUMBER, NO_CLIENT_ID))
        assert len(await reader.readexactly(100)) == 100
        writer.close()

asyncio.run(main())
print(*sys.modules)
"""
CLIENT = """
import importlib, sys
importlib.import_module("kmr.broker.cli." + sys.argv[1])
print(*sys.modules)
"""
LARGE = {
    "aiokafka",
    "avro",
    "google.protobuf",
    "jsonschema",
    "numba",
    "numpy",
    "pandas",
    "pyarrow",
    "starlette",
    "uvicorn",
}
SERVER_SIDE = ("apis", "authorization", "broker", "coordinators", "log", "operations", "server")
CLIENT_COMMANDS = ("topic", "group", "produce", "consume", "console")


def modules(program: str, argument: str) -> set[str]:
    command = [sys.executable, "-c", program, argument]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def test_a_broker_starts_without_libraries_and_messages_that_it_does_not_need(
    tmp_path: Path,
) -> None:
    found = modules(SERVE, str(tmp_path / "data"))
    assert not found & LARGE
    messages = {name.split(".")[2] for name in found if name.startswith("kio.schema.")}
    headers = {"request_header", "response_header"}
    assert messages == {"api_versions", "errors", "index", "types"} | headers


@pytest.mark.parametrize("command", CLIENT_COMMANDS)
def test_a_client_command_does_not_import_the_server_side(command: str) -> None:
    found = modules(CLIENT, command)
    assert not found & {f"kmr.broker.{room}" for room in SERVER_SIDE}
    assert not found & {"numba", "pandas", "pyarrow"}
    assert "aiokafka" in found


def test_the_list_of_commands_imports_none_of_them() -> None:
    program = "import sys; from kmr.broker.cli import app; app.help_print([]); print(*sys.modules)"
    found = modules(program, "")
    assert not found & LARGE
    assert not {name for name in found if name.startswith("kmr.broker.cli.")}
