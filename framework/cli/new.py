"""`kmr new`: make a project, a folder with a strategy, its test and its settings."""

from __future__ import annotations

import re
from pathlib import Path  # noqa: TC003  cyclopts reads the annotations at run time
from typing import Final

from ..errors import SettingsError
from .output import plain_console

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def new(directory: Path, /) -> None:
    """Make a project: a strategy, its test, settings, sample records, a Makefile and a Dockerfile.

    It works as it comes: `make test` runs its test; `make broker`, `make produce`, `make run` and
    `make query` bring the sample records into the embedded ClickHouse.

    For example:

        kmr new orders
        cd orders && make test

    Parameters
    ----------
    directory
        The folder to make; its name is the name of topic, consumer group and table. It must not exist, or
        be empty.
    """
    name = directory.resolve().name
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"{name}: the name of the folder becomes that of a topic and a table: begin with a letter, use "
            "letters, digits, - and _"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise SettingsError(f"{directory} is not empty: name a new folder")
        for file, text in _FILES.items():
            text = text.replace("TOPIC", name).replace("TABLE", name.replace("-", "_"))
            (directory / file).write_text(text.lstrip("\n"), encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{directory}: cannot be written ({error.strerror})") from error
    console = plain_console()
    console.print(f"{directory} has {', '.join(_FILES)}")
    console.print(f"Next: cd {directory} && make test; README.md says how to go on")


_FILES: Final = {
    "strategy.py": '''
"""What happens to the records of the topic TOPIC."""

import msgspec

from kmr import Json, Strategy
from kmr.sinks import ClickHouseWriter, StreamWriter


class Event(msgspec.Struct):
    """The value of a record. Fields that are not here are ignored."""

    name: str
    amount: float


def parse(event: Event) -> Event | None:
    """Return the row of a record, or None to leave it out; raise to send it to `reduce_err`."""
    return event if event.amount else None


strategy = Strategy(
    value=Json(Event),
    map=parse,
    reduce=ClickHouseWriter("TABLE", create=True),
    # Later: DeadLetterWriter("TOPIC-dead"), and `kmr dlq` to look at what failed.
    reduce_err=StreamWriter("failed.jsonl"),
)
''',
    "test_strategy.py": '''
"""Run them with `make test`."""

from strategy import strategy

from kmr.testing import run_strategy


def test_events_become_rows():
    run = run_strategy(strategy, [{"name": "a", "amount": 2.5}, {"name": "b", "amount": 0}])
    assert run.rows == [{"name": "a", "amount": 2.5}]
    assert [offset for _, offset in run.filtered] == [1]


def test_a_value_that_does_not_fit_fails_alone():
    run = run_strategy(strategy, [{"name": "a"}, b"no JSON", {"name": "b", "amount": 1}])
    assert [row["name"] for row in run.rows] == ["b"]
    assert run.failures[0]["reason"] == "field amount: missing, and it has no default"
    assert len(run.failures) == 2
''',
    "kmr.toml": """
# Every setting: `kmr config show --config kmr.toml`. Variables (KMR_GROUP) and flags override this file.
[kmr]
strategy = "strategy"
topics = ["TOPIC"]
group = "TOPIC"
bootstrap_servers = "127.0.0.1:9092"

[kmr.http]
port = 8080
""",
    "records.jsonl": """
{"name": "apples", "amount": 3.5}
{"name": "pears", "amount": 0}
{"name": "apples", "amount": 1.25}
{"name": "plums", "amount": "many"}
""",
    "Makefile": """
.PHONY: test check broker produce run query

test: ## the tests; they need pytest, and no broker
	python -m pytest -q

check: ## the strategy, without a network
	kmr validate strategy

broker: ## the bundled broker, until Ctrl-C
	kmr broker serve --data .kmr/broker

produce: ## send the sample records
	kmr broker produce TOPIC < records.jsonl

run: ## a worker, until Ctrl-C: http://127.0.0.1:8080 shows it. ARGS=--until-caught-up ends it
	kmr run --config kmr.toml $(ARGS)

query: ## what is in the table, after the worker has ended
	kmr clickhouse query "SELECT name, count(), sum(amount) FROM TABLE GROUP BY name ORDER BY name"
""",
    "Dockerfile": """
# docker build --tag TOPIC . && docker run --read-only --tmpfs /tmp --env KMR_CLICKHOUSE_URL=... TOPIC
# The image kmr: deploy/docker of kafka-map-reduce. Variables override
# kmr.toml: KMR_BOOTSTRAP_SERVERS=kafka:9092.
FROM kmr
COPY strategy.py kmr.toml ./
""",
    "README.md": """
# TOPIC

Reads the topic `TOPIC`, and writes its events to the ClickHouse table `TABLE`.

| file | |
| --- | --- |
| `strategy.py` | what happens to a record |
| `test_strategy.py` | its tests: `make test` (`pip install pytest`) |
| `kmr.toml` | settings: topic, group, brokers |
| `records.jsonl` | sample records |
| `Dockerfile` | its image |

Try it: `make broker` in one terminal; `make produce`, `make run ARGS=--until-caught-up` and `make query` in
another. `failed.jsonl` then has the record that failed.

With another Kafka: `bootstrap_servers` in `kmr.toml`. With a ClickHouse server:
`KMR_CLICKHOUSE_URL=http://user:password@host:8123/database`. Without it, ClickHouse runs as a library, in
`.kmr/clickhouse` (extra `embedded`).
""",
}
"""The text of each file; TOPIC and TABLE stand for the names."""
