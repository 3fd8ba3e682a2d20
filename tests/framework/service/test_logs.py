"""Logs of a process: tracebacks without secrets, repeated messages once in a while."""

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
