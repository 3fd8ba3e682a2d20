"""The units in deploy/systemd: what systemd says of them, and the process that one starts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kmr.settings import Settings

UNITS = sorted((Path(__file__).parents[2] / "deploy" / "systemd").glob("*.service"))
WORST = 30  # of 100; systemd calls up to 50 OK


def value(unit: Path, key: str) -> str:
    found = re.search(rf"^{key}=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, key
    return found[1]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_a_unit_and_finds_it_well_protected(unit: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed (Debian's package systemd)")
    copy = tmp_path / unit.name
    program = Path(sys.executable).with_name("kmr")
    copy.write_text(unit.read_text(encoding="utf-8").replace("/opt/kmr/bin/kmr", str(program)))
    for command in (
        ["verify", "--recursive-errors=no", str(copy)],
        ["security", "--offline=true", f"--threshold={WORST}", str(copy)],
    ):
        done = subprocess.run([analyze, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_systemd_waits_longer_than_a_process_takes_to_end() -> None:
    for unit in UNITS:
        assert int(value(unit, "TimeoutStopSec").removesuffix("s")) > 25
    assert Settings(topics=("t",), group="g").shutdown_deadline == 25


def test_the_broker_of_the_unit_says_when_it_serves_and_when_it_stops(tmp_path: Path) -> None:
    unit = next(unit for unit in UNITS if unit.name == "kmr-broker.service")
    command = value(unit, "ExecStart").replace("/opt/kmr/bin", str(Path(sys.executable).parent))
    command = command.replace("/var/lib", str(tmp_path)).replace("--port 9092", "--port 0")
    command = command.replace("--http-port 9644", "--http-port 0")
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(60)
        with subprocess.Popen(
            shlex.split(command),
            env=os.environ | {"NOTIFY_SOCKET": address},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as broker:
            while b"READY=1" not in manager.recv(4096):
                pass
            broker.terminate()
            assert broker.wait(60) == 0
