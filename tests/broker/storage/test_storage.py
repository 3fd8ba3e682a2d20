"""The start names missing and damaged files."""

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kmr.broker import Broker, BrokerError, BrokerSettings
from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.partition import PartitionLog

Start = Callable[..., Awaitable[Broker]]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_damaged_offsets_and_ids_are_named(start: Start, tmp_path: Path) -> None:
    async with Broker(BrokerSettings(data_dir=tmp_path, port=0)) as broker:
        await broker.topics.create("t", 10)
    shutil.move(tmp_path / "offsets", tmp_path / "away")
    (tmp_path / "offsets").write_bytes(b"not a directory")
    before = open_files()
    with pytest.raises(BrokerError, match="committed offsets in"):
        await start(data_dir=tmp_path)
    assert open_files() == before
    assert not (tmp_path / "clean").exists()
    (tmp_path / "offsets").unlink()
    for _ in range(2):
        with pytest.raises(BrokerError, match="are missing; restore"):
            await start(data_dir=tmp_path)
    shutil.move(tmp_path / "away", tmp_path / "offsets")
    (tmp_path / "producer-ids").write_bytes(b"garbage")
    with pytest.raises(BrokerError, match="producer ids in"):
        await start(data_dir=tmp_path)


@pytest.mark.parametrize("damaged", ["topics", "offsets", "transactions"])
async def test_whatever_is_in_a_file_the_start_names_its_directory(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    async with Broker(BrokerSettings(data_dir=tmp_path, port=0)) as broker:
        await broker.topics.create("t", 1)
    works = PartitionLog.open

    def fail(directory: Path, config: LogConfig, *, clean: bool) -> PartitionLog:
        if damaged in directory.parts:
            raise IndexError("a bug")
        return works(directory, config, clean=clean)

    monkeypatch.setattr(PartitionLog, "open", fail)
    with pytest.raises(BrokerError, match=rf"{tmp_path / damaged} .*IndexError\('a bug'\)"):
        await start(data_dir=tmp_path)
