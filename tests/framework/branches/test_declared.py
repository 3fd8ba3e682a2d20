"""The branch of each row, and branches that a new strategy refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pyarrow as pa
import pytest

from kmr import OTHER, Json, Strategy, map_batch, per_name
from kmr.errors import StrategyError
from kmr.record import RECORD_OFFSET
from kmr.sinks import ClickHouseWriter, KafkaWriter, ParquetWriter, StreamWriter
from kmr.testing import run_strategy


class Event(msgspec.Struct):
    kind: str
    n: int


class View(msgspec.Struct):
    n: int


class LongView(View):
    seconds: float


@dataclass
class Order:
    n: int
    item: str


class Tagged(msgspec.Struct, tag="orders"):
    n: int


class Plain(TypedDict):
    n: int


def sink() -> StreamWriter:
    return StreamWriter("stdout")


EVENTS = [{"kind": kind, "n": n} for n, kind in enumerate("vobx")]


def by_type(event: Event) -> list[View | Order]:
    made: dict[str, list[Any]] = {
        "v": [View(event.n)],
        "o": [Order(event.n, "ink")],
        "b": [View(event.n), Order(event.n, "pen")],
    }
    return made.get(event.kind, [])


def rows(run: Any) -> dict[str, list[dict[str, Any]]]:
    return {name: table.to_pylist() for name, table in run.tables.items()}


def test_rows_go_to_the_branch_of_their_type() -> None:
    run = run_strategy(
        Strategy(value=Json(Event), map=by_type, reduce={View: sink(), Order: sink()}), EVENTS
    )
    assert rows(run) == {
        "View": [{"n": 0}, {"n": 2}],
        "Order": [{"n": 1, "item": "ink"}, {"n": 2, "item": "pen"}],
    }
    assert [offset for _, offset in run.filtered] == [3]


def test_a_row_goes_to_the_branch_of_its_parent_class() -> None:
    def views(event: Event) -> Any:
        return LongView(event.n, 0.5)

    run = run_strategy(Strategy(value=Json(Event), map=views, reduce={View: sink()}), EVENTS[:1])
    assert rows(run) == {"View": [{"n": 0, "seconds": 0.5}]}


def test_rows_go_to_the_branch_of_the_name_beside_them_or_of_their_tag() -> None:
    def named(event: Event) -> Any:
        return [({"n": event.n}, "views"), Tagged(event.n), ({"n": -1}, "views")]

    strategy = Strategy(value=Json(Event), map=named, reduce={"views": sink(), "orders": sink()})
    assert rows(run_strategy(strategy, EVENTS[:1])) == {
        "views": [{"n": 0}, {"n": -1}],
        "orders": [{"n": 0}],
    }


def test_a_single_pair_of_a_row_and_a_name_is_one_row() -> None:
    def named(event: Event) -> Any:
        return {"n": event.n}, "views"

    strategy = Strategy(value=Json(Event), map=named, reduce={"views": sink()})
    assert rows(run_strategy(strategy, EVENTS[:2])) == {"views": [{"n": 0}, {"n": 1}]}


def test_a_batch_map_returns_tables_by_name() -> None:
    @map_batch
    def split(events: pa.RecordBatch) -> Any:
        numbers, offsets = events.column("n"), events.column(RECORD_OFFSET)
        return {
            "all": pa.table({"n": numbers, RECORD_OFFSET: offsets}),
            "first": (pa.table({"one": numbers.slice(0, 1)}), [0]),
            "none": None,
        }

    chains = {"all": sink(), "first": sink(), "none": sink()}
    run = run_strategy(Strategy(value=Json(Event), map=split, reduce=chains), EVENTS)
    assert rows(run) == {
        "all": [{"n": 0}, {"n": 1}, {"n": 2}, {"n": 3}],
        "first": [{"one": 0}],
        "none": [],
    }


def test_a_record_with_a_row_of_no_branch_fails_with_all_of_its_rows() -> None:
    def unknown(event: Event) -> Any:
        return [View(event.n), Order(event.n, "ink")] if event.n else [View(event.n)]

    strategy = Strategy(
        value=Json(Event), map=unknown, reduce={View: sink()}, reduce_err=StreamWriter("stderr")
    )
    run = run_strategy(strategy, EVENTS[:2])
    assert rows(run) == {"View": [{"n": 0}]}
    (failure,) = run.failures
    assert failure["offset"] == 1
    assert failure["reason"] == (
        "reduce= has no branch for the type Order, only View; add it, or OTHER"
    )


def test_other_takes_the_rest() -> None:
    strategy = Strategy(value=Json(Event), map=by_type, reduce={View: sink(), OTHER: sink()})
    assert rows(run_strategy(strategy, EVENTS))["other"] == [
        {"n": 1, "item": "ink"},
        {"n": 2, "item": "pen"},
    ]


def test_branches_are_made_for_names_that_come() -> None:
    def named(event: Event) -> Any:
        return {"n": event.n}, event.kind

    strategy = Strategy(value=Json(Event), map=named, reduce=per_name(lambda _: sink(), at_most=9))
    assert {name: len(found) for name, found in rows(run_strategy(strategy, EVENTS)).items()} == {
        "v": 1,
        "o": 1,
        "b": 1,
        "x": 1,
        "example": 0,
    }


ODD = ["", "a\nb", "\0", "\ud800", "x" * 101]


def test_a_record_with_a_name_that_no_branch_may_have_fails_alone() -> None:
    names = [*ODD, "ü'\"`;--", "../x", "A", "a"]

    def named(event: Event) -> Any:
        return {"n": event.n}, names[event.n]

    strategy = Strategy(
        value=Json(Event),
        map=named,
        reduce=per_name(lambda _: sink(), at_most=9),
        reduce_err=StreamWriter("stderr"),
    )
    run = run_strategy(strategy, [{"kind": "", "n": n} for n in range(len(names))])
    found = {name: [row["n"] for row in some] for name, some in rows(run).items() if some}
    assert found == {name: [at] for at, name in enumerate(names) if name not in ODD}
    assert [failure["offset"] for failure in run.failures] == list(range(len(ODD)))
    for failure in run.failures:
        assert "a name of 1 to 100 printable characters" in failure["reason"]
        assert len(failure["reason"]) < 300


def test_a_record_fails_for_whose_name_make_raises() -> None:
    def named(event: Event) -> Any:
        return {"n": event.n}, event.kind

    def make(name: str) -> StreamWriter:
        return {"v": sink(), "example": sink()}[name]

    strategy = Strategy(
        value=Json(Event),
        map=named,
        reduce=per_name(make, at_most=9),
        reduce_err=StreamWriter("stderr"),
    )
    run = run_strategy(strategy, EVENTS[:2])
    assert rows(run)["v"] == [{"n": 0}]
    assert [failure["reason"] for failure in run.failures] == [
        "branch o: per_name: make('o') raised KeyError: 'o'"
    ]


@pytest.mark.parametrize(
    ("make", "at_most", "message"),
    [
        (lambda _: sink(), 0, "at_most must be a number from 1 on, not 0"),
        (lambda _: sink(), "5", "at_most must be a number from 1 on, not '5'"),
        ("events", 5, "make must be a function of a name, not 'events'"),
        ({"a": 1}.__getitem__, 5, "raised KeyError: 'example'; it is called with example= once"),
    ],
)
def test_what_per_name_cannot_use_is_refused_when_the_strategy_is_made(
    make: Any, at_most: Any, message: str
) -> None:
    with pytest.raises(StrategyError, match=message):
        Strategy(value=Json(Event), map=by_type, reduce=per_name(make, at_most=at_most))


def test_a_record_with_a_value_that_does_not_fit_fails_with_its_rows_in_other_branches() -> None:
    def wrong(event: Event) -> list[View | Order]:
        return [View(event.n), Order("no" if event.n else 1, "ink")]  # type: ignore[arg-type]

    strategy = Strategy(
        value=Json(Event),
        map=wrong,
        reduce={View: sink(), Order: sink()},
        reduce_err=StreamWriter("stderr"),
    )
    run = run_strategy(strategy, EVENTS[:2])
    assert rows(run) == {"View": [{"n": 0}], "Order": [{"n": 1, "item": "ink"}]}
    assert [failure["offset"] for failure in run.failures] == [1]


def test_the_weakest_guarantee_counts() -> None:
    def strategy(*sinks: Any) -> Strategy:
        return Strategy(value=Json(Event), map=by_type, reduce=dict(zip("ab", sinks, strict=True)))

    both = strategy(ClickHouseWriter("t"), ParquetWriter("files"))
    assert both.requested_delivery == "exactly-once"
    assert strategy(ClickHouseWriter("t"), sink()).requested_delivery == "at-least-once"


@pytest.mark.parametrize(
    ("reduce", "message"),
    [
        ({View: sink()}, "no branch for Order, which the map returns, only View"),
        ({}, "reduce= is empty"),
        ({View: []}, r"reduce\['View'\] is empty"),
        ({View: 1, Order: sink()}, r"reduce\['View'\]"),
        ({int: sink()}, "the key int, which is not the class of an object"),
        ({Plain: sink()}, "the key Plain, which is not the class of an object"),
        ({"": sink()}, "a name of 1 to 100 printable"),
        ({View: sink(), "View": sink()}, "two branches with the name View"),
        ({"a": [sink(), sink()]}, "StreamWriter writes, so it must be the last of its chain"),
        ({"a": per_name(lambda _: sink(), at_most=1)}, "give it to OTHER"),
        (
            {"a": ClickHouseWriter("d.t"), "b": ClickHouseWriter("t", database="d")},
            "branches a and b write to one table, whose counts could not tell their rows apart",
        ),
        (dict.fromkeys(("a", "b"), sink()), "branches a and b have one reducer object"),
        (
            {"a": KafkaWriter("t", delivery="exactly-once"), "b": ClickHouseWriter("t")},
            "branch a commits offsets in a transaction, and branch b cannot be a part of it",
        ),
        (
            {"a": ClickHouseWriter("t", when_full="backpressure"), "b": ClickHouseWriter("u")},
            "their when_full differs",
        ),
    ],
)
def test_what_cannot_be_together_is_refused_when_the_strategy_is_made(
    reduce: Any, message: str
) -> None:
    with pytest.raises(StrategyError, match=message):
        Strategy(value=Json(Event), map=by_type, reduce=reduce)


def test_branches_need_a_map() -> None:
    with pytest.raises(StrategyError, match="set map=, or give one reducer"):
        Strategy(value=Json(Event), reduce={"a": sink()})


def test_two_writers_in_one_chain_are_refused() -> None:
    with pytest.raises(StrategyError, match="give each writer a branch of its own"):
        Strategy(value=Json(Event), map=by_type, reduce=[ClickHouseWriter("a"), sink()])
