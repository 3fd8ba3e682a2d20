"""Logs of a process: tracebacks without secrets, repeated messages once in a while."""

import logging
from typing import Literal

import pytest
import structlog

from kmr.service.logs import Repetition, log_to_stderr


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_traceback_shows_no_local_variables(
    form: Literal["console", "json"], capsys: pytest.CaptureFixture[str]
) -> None:
    log_to_stderr("info", form, quiet=())
    log = structlog.get_logger()

    def fail(password: str) -> None:
        raise ValueError(len(password))

    try:
        fail("hunter" + "2")
    except ValueError:
        log.exception("request failed")
    logged = capsys.readouterr().err
    assert "ValueError: 7" in logged
    assert "hunter2" not in logged


@pytest.mark.parametrize(("form", "shown"), [("console", "worker=3"), ("json", '"worker": 3')])
def test_every_event_says_which_worker_logs_also_those_of_libraries(
    form: Literal["console", "json"], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to_stderr("info", form, quiet=(), always={"worker": 3})
    structlog.get_logger().info("ours")
    logging.getLogger("library").info("theirs")
    lines = capsys.readouterr().err.splitlines()
    assert [shown in line for line in lines] == [True, True]


def test_a_repeated_message_is_logged_every_ten_seconds_with_its_count() -> None:
    now = 0.0
    repetition = Repetition(lambda: now)
    assert [repetition.times("a") for _ in range(3)] == [1, 0, 0]
    assert repetition.times("b") == 1, "another message"
    now = 9.9
    assert repetition.times("a") == 0
    now = 10.0
    assert repetition.times("a") == 4, "three that were not logged, and this one"
    assert repetition.times("a") == 0
    now = 100.0
    assert repetition.times("a") == 2
