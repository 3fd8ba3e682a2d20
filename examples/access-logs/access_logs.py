"""Lines of a web server's access log to rows of ClickHouse; other lines become dead letters."""

import re
from datetime import datetime

import msgspec

from kmr import ErrorLimit, Record, Strategy
from kmr.sinks import ClickHouseWriter, DeadLetterWriter

LINE = re.compile(
    r'(?P<host>\S+) \S+ (?P<user>\S+) \[(?P<time>[^\]]+)\] "(?P<method>[A-Z]+) (?P<path>\S+) [^"]*" '
    r"(?P<status>\d{3}) (?P<bytes>\d+|-)"
)


class Hit(msgspec.Struct):
    """A row of the table `hits`."""

    time: datetime
    host: str
    user: str | None
    method: str
    path: str
    status: int
    bytes: int


def parse(record: Record) -> Hit | None:
    """Return the row of a line; health checks are left out."""
    found = LINE.match((record.value or b"").decode())
    if found is None:
        raise ValueError("not a line in the common log format")
    if found["path"] == "/health":
        return None
    return Hit(
        time=datetime.strptime(found["time"], "%d/%b/%Y:%H:%M:%S %z"),
        host=found["host"],
        user=None if found["user"] == "-" else found["user"],
        method=found["method"],
        path=found["path"],
        status=int(found["status"]),
        bytes=0 if found["bytes"] == "-" else int(found["bytes"]),
    )


strategy = Strategy(
    map=parse,
    reduce=[
        ClickHouseWriter(
            "hits", create=True, partition_by="toYYYYMM(time)", order_by=["path", "time"]
        )
    ],
    reduce_err=DeadLetterWriter("access-logs-dead"),
    err_limit=ErrorLimit(1_000, per=60.0),  # more than that is no bad line, but a wrong topic
)
