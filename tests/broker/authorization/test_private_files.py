"""Private files: checked at intervals, and the newest content wins."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import structlog

from kmr.broker.authorization.private_files import PrivateFormat, WatchedFile

if TYPE_CHECKING:
    import pytest

NUMBER = PrivateFormat("the number", parse=int, document=int, empty=0)


def test_a_file_is_checked_at_most_once_in_the_interval(tmp_path: Path) -> None:
    path = tmp_path / "file"
    NUMBER.write(path, 1)
    watched = WatchedFile(path, NUMBER, interval=3600)
    NUMBER.write(path, 2)
    assert watched.content == 1


def test_a_slow_reader_does_not_bring_back_replaced_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    NUMBER.write(path, 1)
    slow, go_on = Event(), Event()

    def parse(data: bytes) -> int:
        if int(data) == 2:
            slow.set()
            assert go_on.wait(60)
        return int(data)

    watched = WatchedFile(path, replace(NUMBER, parse=parse))
    with ThreadPoolExecutor(2) as threads:
        NUMBER.write(path, 2)
        first = threads.submit(lambda: watched.content)
        assert slow.wait(60)
        NUMBER.write(path, 3)
        second = threads.submit(lambda: watched.content)
        wait([second], timeout=0.1)  # long enough for a wrong result to appear
        go_on.set()
        assert first.result(60) in (2, 3)
        assert second.result(60) == 3
    assert watched.content == 3


def test_a_change_that_could_not_be_read_applies_when_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    NUMBER.write(path, 1)
    watched = WatchedFile(path, NUMBER)
    NUMBER.write(path, 2)

    def fail(_: Path) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with structlog.testing.capture_logs() as logs:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", fail)
            assert (watched.content, watched.content) == (1, 1)
        assert watched.content == 2
    assert [each["log_level"] for each in logs] == ["error", "info"], "it is reported once"


def test_a_file_that_is_invalid_is_not_read_again_until_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    NUMBER.write(path, 1)
    parsed: list[bytes] = []

    def parse(data: bytes) -> int:
        parsed.append(data)
        return int(data)

    watched = WatchedFile(path, replace(NUMBER, parse=parse))
    path.write_text("none")
    assert [watched.content for _ in range(3)] == [1, 1, 1]
    assert parsed[1:] == [b"none"]
