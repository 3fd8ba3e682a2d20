"""What `kmr broker serve` logs when something fails."""

from typing import Literal

import pytest
import structlog

from broker.cli.logs import set_up_logs


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_traceback_shows_no_local_variables(
    form: Literal["console", "json"], capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logs("info", form)
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
