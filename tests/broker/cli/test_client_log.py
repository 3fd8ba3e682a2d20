"""What of aiokafka's log people see."""

import logging

import pytest

from broker.cli.client_log import Sparse, tell_client_errors


def test_an_error_that_repeats_is_told_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    handler = Sparse(lambda: now)
    for now in (0.0, 0.1, 29.0, 30.0, 31.0):
        for name in ("client", "group"):
            error = f"{name} failed at {now}"
            handler.emit(logging.LogRecord(name, logging.ERROR, "", 0, error, None, None))
    assert capsys.readouterr().err.splitlines() == [
        "kmr broker: client failed at 0.0",
        "kmr broker: group failed at 0.0",
        "kmr broker: client failed at 30.0",
        "kmr broker: group failed at 30.0",
    ]


def test_warnings_are_not_told_and_everything_is_as_before_afterwards(
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = logging.getLogger("aiokafka")
    before = (client.level, client.propagate, list(client.handlers))
    with tell_client_errors():
        logging.getLogger("aiokafka.consumer").warning("rebalancing")
        logging.getLogger("aiokafka.consumer").error("gone")
    assert capsys.readouterr().err == "kmr broker: gone\n"
    assert (client.level, client.propagate, list(client.handlers)) == before
