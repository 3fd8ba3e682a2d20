"""Logs of every process of ours."""

from typing import Literal

import pytest
import structlog

from service.logs import log_to_stderr


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
