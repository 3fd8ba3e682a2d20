"""Logs: one format on stderr for our events and for those of the libraries, and few of them."""

from __future__ import annotations

import json
import logging
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from kmr.observe.logs import _KafkaClient, joined_partitions, setup_logs
from kmr.record import TopicPartition
from kmr.settings import LogSettings

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    quieted = {
        name: logger.level
        for name, logger in root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger)
    }
    yield
    structlog.reset_defaults()
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("aiohttp", "aiokafka", "asyncio", "clickhouse_connect", "uvicorn"):
        logging.getLogger(name).setLevel(quieted.get(name, logging.NOTSET))


def events(capture: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    captured = capture.readouterr()
    assert captured.out == ""
    return [json.loads(line) for line in captured.err.splitlines()]


def test_our_events_and_those_of_libraries_have_the_same_shape(
    capsys: pytest.CaptureFixture[str],
) -> None:
    setup_logs(LogSettings(format="json"))
    structlog.get_logger("kmr.reduce").warning("flush_retried", stage="reduce-1", attempt=2)
    logging.getLogger("somebody").warning("cannot reach %s", "host", extra={"port": 5})
    ours, theirs = events(capsys)
    assert list(ours)[:4] == list(theirs)[:4] == ["timestamp", "level", "logger", "event"]
    assert ours | {"timestamp": ""} == {
        "timestamp": "",
        "level": "warning",
        "logger": "kmr.reduce",
        "event": "flush_retried",
        "stage": "reduce-1",
        "attempt": 2,
    }
    assert theirs["event"] == "cannot reach host"
    assert theirs["port"] == 5


def test_an_exception_is_logged_as_text_on_the_same_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    setup_logs(LogSettings(format="json"))
    try:
        raise ValueError("what went wrong")
    except ValueError:
        structlog.get_logger("kmr").exception("it_broke", value=object)
    (event,) = events(capsys)
    assert event["level"] == "error"
    assert "ValueError: what went wrong" in event["exception"]
    assert event["value"] == "<class 'object'>"


def test_information_of_libraries_is_left_out_unless_we_debug(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for level, expected in (("info", ["ours"]), ("debug", ["ours", "theirs"])):
        setup_logs(LogSettings(level=level, format="json"))  # type: ignore[arg-type]
        structlog.get_logger("kmr").info("ours")
        logging.getLogger("aiokafka.consumer.fetcher").info("theirs")
        assert [event["event"] for event in events(capsys)] == expected


def test_nothing_below_the_level_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logs(LogSettings(level="error", format="json"))
    structlog.get_logger("kmr").warning("ours")
    logging.getLogger("uvicorn.error").warning("theirs")
    assert events(capsys) == []


def test_an_error_that_the_kafka_client_mends_is_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    setup_logs(LogSettings(format="json"))
    logging.getLogger("aiokafka").error("Unable connect to node with id %s", 0)
    (event,) = events(capsys)
    assert event["level"] == "warning"


def test_what_the_kafka_client_mends_is_left_out_where_only_errors_are_logged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    setup_logs(LogSettings(level="error", format="json"))
    logging.getLogger("aiokafka").error("Unable connect to node")
    logging.getLogger("somebody").error("theirs")
    assert [event["event"] for event in events(capsys)] == ["theirs"]


def test_what_the_kafka_client_repeats_is_logged_once_and_counted() -> None:
    now = 0.0
    calm = _KafkaClient(clock=lambda: now)

    def record(node: int) -> logging.LogRecord:
        return logging.LogRecord("aiokafka", logging.ERROR, "", 0, "no node %s", (node,), None)

    assert calm.filter(record(1))
    for _ in range(5):
        now += 1.0
        assert not calm.filter(record(2))
    now = 10.0
    again = record(3)
    assert calm.filter(again)
    assert again.__dict__["repeated"] == 5


def test_successive_partitions_of_one_value_are_one_entry() -> None:
    starts: dict[TopicPartition, int | None] = {TopicPartition("a", n): 0 for n in range(512)}
    starts |= {TopicPartition("a", 7): 5, TopicPartition("b", 0): 0, TopicPartition("b", 2): None}
    starts |= {TopicPartition("b", 3): None}
    expected = {"a-0..6": 0, "a-7": 5, "a-8..511": 0, "b-0": 0, "b-2..3": None}
    assert joined_partitions(starts) == expected
    assert joined_partitions({}) == {}


def test_warnings_of_python_are_logged_too(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logs(LogSettings(format="json"))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    (event,) = events(capsys)
    assert event["logger"] == "py.warnings"
    assert "DeprecationWarning: old" in event["event"]


def test_lines_are_for_people_also_in_a_pipe_unless_json_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    setup_logs(LogSettings())
    structlog.get_logger("kmr.worker").info("started", group="g")
    line = capsys.readouterr().err
    assert "started" in line
    assert "group=g" in line
    with pytest.raises(json.JSONDecodeError):
        json.loads(line)
