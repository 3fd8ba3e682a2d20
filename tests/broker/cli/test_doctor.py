import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from kmr.broker import Broker, BrokerSettings

Kmr = Callable[..., Any]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data directory of a stopped broker with one topic."""

    async def make() -> None:
        async with Broker(BrokerSettings(data_dir=tmp_path / "data", port=0)) as broker:
            await broker.topics.create("t", 2)

    with start_blocking_portal() as portal:
        portal.call(make)
    return tmp_path / "data"


def test_an_undamaged_directory_is_reported(kmr: Kmr, data: Path) -> None:
    result = kmr("doctor", str(data))
    assert (result.code, result.err) == (0, b"")
    assert result.lines == ["1 topics, 2 partitions, 4 segments, 0 batches, 0 bytes: no damage"]


def test_damage_is_reported_with_exit_code_1(kmr: Kmr, data: Path) -> None:
    path = next((data / "topics" / "t" / "1").glob("*.log"))
    path.write_bytes(b"nonsense")
    result = kmr("doctor", str(data))
    assert result.code == 1
    assert result.lines[0].startswith(f"damage: {path}: byte 0: ")
    assert result.lines[1].endswith(": 1 damaged")
    shown = json.loads(kmr("doctor", str(data), "--json").out)
    assert shown["damaged"]
    assert shown["clean"]
    assert shown["findings"][0]["where"] == str(path)


def test_notes_are_no_damage(kmr: Kmr, data: Path) -> None:
    (data / "clean").unlink()
    result = kmr("doctor", str(data))
    assert result.code == 0
    assert result.lines[0].startswith(f"note: {data}: the broker was not stopped cleanly")


def test_another_directory_is_an_error(kmr: Kmr, tmp_path: Path) -> None:
    result = kmr("doctor", str(tmp_path))
    assert (result.code, result.out) == (1, b"")
    assert b"is not the data directory of a broker" in result.err
