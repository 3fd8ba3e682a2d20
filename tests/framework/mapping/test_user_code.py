"""What a user's map may raise and return: its record fails with a reason, and the others go on."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import pytest

from kmr import Record, Strategy, map_batch, map_record
from kmr.testing import Journal, MemoryWriter, run_strategy

if TYPE_CHECKING:
    from collections.abc import Callable


class Silent(Exception):
    def __str__(self) -> str:
        raise AttributeError("no response")


class Exiting(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class Lazy(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise OSError("gone")

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


def throwing(error: BaseException) -> Callable[[Record], Any]:
    def function(record: Record) -> dict[str, int]:
        if record.value == b"bad":
            raise error
        return {"offset": record.offset}

    return function


def returning(result: Any) -> Callable[[Record], Any]:
    return lambda record: result if record.value == b"bad" else {"a": record.offset}


def reasons(function: Callable[..., Any]) -> list[str]:
    """Map three records, of which the second is bad: the others are rows."""
    run = run_strategy(
        Strategy(map=function, reduce=MemoryWriter(Journal()), reduce_err=MemoryWriter(Journal())),
        [b"good", b"bad", b"good"],
    )
    assert len(run.rows) == 2, run.rows
    assert [failure["offset"] for failure in run.failures] == [1]
    json.dumps(run.failures[0]["traceback"]).encode()
    return [failure["reason"] for failure in run.failures]


EXCEPTIONS = [
    (Silent(), "Silent (its __str__ raises AttributeError)"),
    (Exiting(), "Exiting (its __str__ raises SystemExit)"),
    (KeyError(Unprintable()), "KeyError (its __str__ raises RuntimeError)"),
    (ValueError("unknown plan fr\ud83d"), "ValueError: unknown plan fr\\ud83d"),
    (SystemExit(0), "SystemExit: 0"),
    (asyncio.CancelledError(), "CancelledError"),
    (BaseException("base"), "BaseException: base"),
]


@pytest.mark.parametrize(("error", "reason"), EXCEPTIONS)
def test_whatever_a_map_raises_fails_its_record_alone(error: BaseException, reason: str) -> None:
    plain = throwing(error)

    async def later(record: Record) -> Any:
        return plain(record)

    assert reasons(plain) == [reason]
    assert reasons(later) == [reason]
    assert reasons(map_record(concurrency=3)(throwing(error))) == [reason]

    @map_record(concurrency=3)
    async def several(record: Record) -> Any:
        return plain(record)

    assert reasons(several) == [reason]


def test_a_per_batch_map_that_exits_fails_the_record_that_makes_it_exit() -> None:
    @map_batch
    def exits(batch: Any) -> Any:
        if b"bad" in batch.column("value").to_pylist():
            sys.exit("no")
        return batch.select(["value", "kmr_offset"])

    assert reasons(exits) == ["SystemExit: no"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "the row has no columns"),
        ({1: 2}, "the row has the key 1 (int); keys are names of columns: make them text"),
        (
            {Unprintable(): 1},
            "the row has the key a Unprintable (Unprintable); keys are names of columns",
        ),
        ({"fr\ud83d": 1}, "the row has the key fr\\ud83d, which has no UTF-8 form"),
        (Lazy(), "OSError: gone"),
        ((each / 0 for each in [1]), "ZeroDivisionError: division by zero"),
        (
            {"a": 2**70},
            f"column a: the number {2**70} does not fit int64; declare uint64 or a decimal",
        ),
        (
            {"a": object()},
            "column a: no type of a column holds <object object",
        ),
    ],
    ids=[
        "no column",
        "a number",
        "unprintable",
        "a surrogate",
        "lazy",
        "a generator",
        "a large number",
        "object",
    ],
)
def test_a_row_that_cannot_be_one_fails_alone(row: Any, reason: str) -> None:
    (found,) = reasons(returning(row))
    assert found.startswith(reason)


def test_rows_without_columns_fail_though_all_rows_of_a_batch_are_so() -> None:
    run = run_strategy(Strategy(lambda _record: {}, MemoryWriter(Journal())), [b"1", b"2"])
    assert [each["reason"] for each in run.failures] == ["the row has no columns"] * 2


def test_a_coroutine_in_a_row_says_what_to_do() -> None:
    async def answer() -> int:
        return 1

    def forgets(record: Record) -> Any:
        return {"a": answer()} if record.value == b"bad" else {"a": 1}

    assert reasons(forgets) == ["column a: a coroutine; await it, and make the map `async def`"]


def test_a_forgotten_await_of_the_map_says_what_to_do() -> None:
    async def answer() -> dict[str, int]:
        return {"a": 1}

    def forgets(record: Record) -> Any:
        return answer() if record.value == b"bad" else {"a": 1}

    assert reasons(forgets) == [
        "TypeError: the map returned a coroutine: await it, or make the map `async def`"
    ]


class Plan(Enum):
    FREE = "free"


@dataclass
class Place:
    city: str
    plan: Plan


def test_enums_and_objects_in_untyped_rows_are_stored_as_declared_ones_are() -> None:
    def nested(record: Record) -> Any:
        return {"plan": Plan.FREE, "place": Place("Bern", Plan.FREE), "all": {Plan.FREE}}

    run = run_strategy(Strategy(map=nested, reduce=MemoryWriter(Journal())), [b""])
    assert run.rows == [
        {"plan": "free", "place": {"city": "Bern", "plan": "free"}, "all": ["free"]}
    ]
