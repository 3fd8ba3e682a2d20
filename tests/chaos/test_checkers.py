"""Each checker is shown histories that break its guarantee, and must name what broke it."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaos.checkers import (
    GROUP_CHECKERS,
    check,
    check_commits,
    check_course,
    check_dead_letters,
    check_duplicates,
    check_finished,
    check_lost,
    check_memory,
    check_order,
    check_phantoms,
    check_stopped,
    check_watermark,
    check_windows,
)
from chaos.history import History
from chaos.tables import rows_of_letters
from chaos.verdicts import Promise
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from chaos.verdicts import Offence, Result

MAKE_DRAFT = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=examples(120),
)
sizes = st.tuples(st.integers(1, 4), st.integers(1, 12))


def places(offences: Iterable[Offence]) -> set[tuple[int, int]]:
    return {(o.partition, offset) for o in offences for offset in range(o.first, o.last + 1)}


def verdicts(results: Iterable[Result]) -> dict[str, str]:
    return {result.checker: result.verdict for result in results}


@MAKE_DRAFT
@given(sizes, st.sets(st.integers(0, 11)))
def test_a_history_without_a_fault_is_ok_for_every_checker(
    draft: Callable[..., Any], size: tuple[int, int], poison: set[int]
) -> None:
    made = draft(*size, frozenset(poison))
    for checker in GROUP_CHECKERS:
        result = checker(made.history(), made.promise())
        assert (result.verdict, result.offences) == ("ok", ()), result


@MAKE_DRAFT
@given(sizes, st.data())
def test_exactly_the_rows_that_are_not_there_are_lost(
    draft: Callable[..., Any], size: tuple[int, int], data: st.DataObject
) -> None:
    made = draft(*size)
    gone = data.draw(st.sets(st.integers(0, len(made.rows) - 1), min_size=1))
    missing = {(made.rows[at]["partition"], made.rows[at]["offset"]) for at in gone}
    made.rows = [row for at, row in enumerate(made.rows) if at not in gone]
    result = check_lost(made.history(), made.promise())
    assert result.verdict == "violated"
    assert result.count == len(missing)
    assert places(result.offences) == missing


@MAKE_DRAFT
@given(sizes, st.data())
def test_exactly_the_rows_that_are_there_again_are_duplicates(
    draft: Callable[..., Any], size: tuple[int, int], data: st.DataObject
) -> None:
    made = draft(*size)
    again = data.draw(st.lists(st.sampled_from(made.rows), min_size=1))
    made.rows += again
    result = check_duplicates(made.history(), made.promise())
    assert (result.verdict, result.count) == ("violated", len(again))
    assert places(result.offences) == {(row["partition"], row["offset"]) for row in again}


@MAKE_DRAFT
@given(sizes, st.data())
def test_a_commit_before_its_row_is_past_the_watermark(
    draft: Callable[..., Any], size: tuple[int, int], data: st.DataObject
) -> None:
    made = draft(*size)
    late = data.draw(st.sampled_from(made.rows))
    late["time"] += 10 * len(made.rows)
    result = check_watermark(made.history(), made.promise())
    assert result.verdict == "violated"
    assert places(result.offences) == {(late["partition"], late["offset"])}


@MAKE_DRAFT
@given(st.integers(1, 4), st.integers(2, 12), st.data())
def test_a_row_that_comes_before_one_with_a_lower_offset_is_out_of_order(
    draft: Callable[..., Any], partitions: int, records: int, data: st.DataObject
) -> None:
    made = draft(partitions, records)
    late = data.draw(st.sampled_from([row for row in made.rows if row["offset"] < records - 1]))
    late["time"] = records
    result = check_order(made.history(), made.promise())
    assert result.verdict == "violated"
    assert places(result.offences) == {(late["partition"], late["offset"] + 1)}


def test_a_row_that_comes_again_later_is_not_out_of_order(draft: Callable[..., Any]) -> None:
    made = draft(1, 5)
    made.rows += [row | {"time": 100} for row in made.rows[:3]]
    assert check_order(made.history(), made.promise("at-least-once")).verdict == "ok"


def test_no_order_is_promised_where_a_flush_is_several_inserts(draft: Callable[..., Any]) -> None:
    made = draft(1, 5)
    made.rows[0]["time"] = 100
    promise = replace(made.promise("at-least-once"), ordered=False)
    assert check_order(made.history(), promise).verdict == "ok"


def test_what_never_came_is_past_the_watermark_too(draft: Callable[..., Any]) -> None:
    made = draft(2, 5)
    gone = made.rows.pop(3)
    result = check_watermark(made.history(), made.promise())
    assert places(result.offences) == {(gone["partition"], gone["offset"])}


def test_spark_may_commit_records_of_open_windows(draft: Callable[..., Any]) -> None:
    made = draft(2, 5)
    made.rows.pop(3)
    promise = replace(made.promise(), settled=False)
    assert check_watermark(made.history(), promise).verdict == "ok"


def test_the_last_record_of_each_partition_that_is_no_poison_tells_that_all_windows_are_written(
    draft: Callable[..., Any],
) -> None:
    made = draft(2, 5, frozenset({4}))
    made.produced.insert(0, made.produced.pop(3))  # batches are recorded as their answers come
    made.produced.append(
        made.produced[-1] | {"offset": 5, "id": 99, "poison": False, "outcome": "unknown"}
    )
    assert made.history().last_ids() == {3, 8}


def test_a_dead_letter_settles_its_record(draft: Callable[..., Any]) -> None:
    made = draft(2, 10, frozenset({4}))
    assert check_lost(made.history(), made.promise()).verdict == "ok"
    made.dead.pop()
    assert places(check_lost(made.history(), made.promise()).offences) == {(1, 4)}


def test_duplicates_are_legal_at_least_once_and_counted(draft: Callable[..., Any]) -> None:
    made = draft(1, 3)
    made.rows.append(dict(made.rows[0]))
    result = check_duplicates(made.history(), made.promise("at-least-once"))
    assert (result.verdict, result.count) == ("ok", 1)
    assert check_duplicates(made.history(), made.promise("at-most-once")).verdict == "violated"


def test_losses_are_legal_at_most_once_and_counted(draft: Callable[..., Any]) -> None:
    made = draft(1, 3)
    made.rows.pop()
    result = check_lost(made.history(), made.promise("at-most-once"))
    assert (result.verdict, result.count) == ("ok", 1)
    assert check_lost(made.history(), made.promise("at-least-once")).verdict == "violated"


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"id": 999}, (0, 1)),  # it was never sent
        ({"offset": 7}, (0, 7)),  # it was sent elsewhere
    ],
)
def test_a_row_that_was_never_sent_there_is_a_phantom(
    draft: Callable[..., Any], change: dict[str, int], place: tuple[int, int]
) -> None:
    made = draft(1, 3)
    made.rows[1] |= change
    result = check_phantoms(made.history(), made.promise())
    assert result.verdict == "violated"
    assert places(result.offences) == {place}


def test_a_row_of_an_aborted_transaction_is_a_phantom(draft: Callable[..., Any]) -> None:
    made = draft(1, 3)
    made.produced[1]["outcome"] = "aborted"
    assert places(check_phantoms(made.history(), made.promise()).offences) == {(0, 1)}


def test_a_record_of_unknown_fate_may_be_there_or_not(draft: Callable[..., Any]) -> None:
    made = draft(1, 3)
    made.produced[1] |= {"outcome": "unknown", "offset": None}
    assert check_phantoms(made.history(), made.promise()).verdict == "ok"
    made.rows.pop(1)
    assert check_lost(made.history(), made.promise()).verdict == "ok"


def test_a_committed_offset_that_goes_back_is_named(draft: Callable[..., Any]) -> None:
    made = draft(2, 5)
    made.commits.append(made.commits[-1] | {"offset": 2, "time": 100})
    result = check_commits(made.history(), made.promise())
    assert result.verdict == "violated"
    assert [str(offence) for offence in result.offences] == ["t-1[2..4] went back from 5"]


def test_a_partition_that_was_not_worked_off_is_named(draft: Callable[..., Any]) -> None:
    made = draft(2, 5)
    made.commits = [line for line in made.commits if line["partition"] == 0 or line["offset"] < 3]
    result = check_finished(made.history(), made.promise())
    assert (result.verdict, result.count) == ("violated", 3)
    assert places(result.offences) == {(1, 2), (1, 3), (1, 4)}


def test_a_dead_letter_of_an_aborted_transaction_is_named(draft: Callable[..., Any]) -> None:
    made = draft(1, 6, frozenset({2}))
    made.produced[2]["outcome"] = "aborted"
    result = check_dead_letters(made.history(), made.promise())
    assert result.verdict == "violated"
    assert places(result.offences) == {(0, 2)}


def test_a_course_that_was_given_up_is_violated_with_the_reason() -> None:
    event = {"time": 0, "until": None, "kind": "fault", "name": "kill-worker", "detail": ""}
    assert check_course(History.of({"events": [event]})).verdict == "ok"
    end = event | {"kind": "given up", "detail": "recovery: not within 90 s"}
    result = check_course(History.of({"events": [event, end]}))
    assert (result.verdict, result.detail) == ("violated", "recovery: not within 90 s")


@pytest.mark.parametrize("wrong", ["good record dead", "poison in the sink", "poison nowhere"])
def test_dead_letters_are_the_poisoned_records_and_no_other(
    draft: Callable[..., Any], wrong: str
) -> None:
    made = draft(1, 6, frozenset({2}))
    if wrong == "good record dead":
        made.dead.append(made.dead[0] | {"offset": 3})
    elif wrong == "poison in the sink":
        made.rows.append(made.dead[0] | {"id": 2})
    else:
        made.dead.clear()
    result = check_dead_letters(made.history(), made.promise())
    assert result.verdict == "violated"
    assert places(result.offences) == {(0, 3 if wrong == "good record dead" else 2)}


def test_what_could_not_be_read_is_unknown_with_the_reason(draft: Callable[..., Any]) -> None:
    made = draft(1, 3)
    made.unread = {"rows/g": "the server is gone"}
    result = check_lost(made.history(), made.promise())
    assert result.verdict == "unknown"
    assert "the server is gone" in result.detail


def test_nothing_to_look_at_is_unknown() -> None:
    nothing = check(History.of({}), [], memory_limit=1)
    assert verdicts(nothing) == {"course": "ok", "memory": "unknown", "stopped": "unknown"}


def test_other_groups_and_topics_do_not_count(draft: Callable[..., Any]) -> None:
    made = draft(1, 3)
    made.rows += [row | {"group": "other"} for row in made.rows]
    made.rows += [row | {"topic": "other"} for row in made.rows]
    assert check_duplicates(made.history(), made.promise()).verdict == "ok"


def test_a_process_that_grew_too_large_is_named() -> None:
    sizes = [{"process": "a", "bytes": 5, "time": 0}, {"process": "b", "bytes": 2**30, "time": 1}]
    history = History.of({"memory": sizes})
    assert check_memory(history, 2**30).verdict == "ok"
    result = check_memory(history, 2**29)
    assert result.verdict == "violated"
    assert "b 1,024 MiB" in result.detail
    assert "a " not in result.detail.partition(":")[2]


@pytest.mark.parametrize(
    ("ending", "code", "ready", "verdict"),
    [
        ("stopped", 0, True, "ok"),
        ("killed", -signal.SIGKILL, True, "ok"),
        ("stopped", -signal.SIGTERM, False, "ok"),  # before it listened to signals
        ("stopped", -signal.SIGTERM, True, "violated"),
        ("stopped", 3, True, "violated"),
        ("late", 3, True, "ok"),
        ("late", 0, True, "violated"),
        ("died", 0, True, "violated"),
        ("running", None, True, "violated"),
    ],
)
def test_a_process_must_end_by_our_signal(
    ending: str, code: int | None, ready: bool, verdict: str
) -> None:
    line = {"name": "w", "pid": 7, "started": 0, "ended": 1, "code": code}
    history = History.of({"processes": [line | {"ending": ending, "ready": ready}]})
    assert check_stopped(history).verdict == verdict


@pytest.mark.parametrize(
    ("changes", "verdict", "count"),
    [
        ([], "ok", 3),
        ([{"bucket": 1}], "violated", 1),
        ([{"bucket": 1, "letter": True}], "violated", 1),
        ([{"bucket": 7, "letter": True}], "ok", 4),
        ([{"bucket": 7, "first": -1}, {"bucket": 8, "last": 10}], "violated", 2),
    ],
)
def test_a_window_that_is_there_twice_or_has_foreign_records_is_found(
    changes: list[dict[str, int]], verdict: str, count: int
) -> None:
    row = {"group": "g", "topic": "t", "partition": 0, "start": 0, "end": 10, "first": 0, "last": 9}
    rows = [row | {"bucket": bucket} for bucket in range(3)]
    rows += [row | change for change in changes]
    promise = Promise("g", "t", "exactly-once", windows=True)
    result = check_windows(History.of({"windows": rows}), promise)
    assert (result.verdict, result.count) == (verdict, count)
    assert check_windows(History.of({}), promise).verdict == "unknown"


def test_where_no_row_of_a_window_is_a_letter_a_storm_of_refused_rows_proves_nothing() -> None:
    row = {"group": "g", "topic": "t", "partition": 0, "bucket": 1, "start": 0, "end": 10}
    row |= {"first": 0, "last": 9}
    promise = Promise("g", "t", "exactly-once", windows=True, refuses=True)
    assert check_windows(History.of({"windows": [row]}), promise).verdict == "unknown"
    assert check_windows(History.of({"windows": [row | {"letter": True}]}), promise).verdict == "ok"


def test_the_row_of_a_letter_is_a_window_with_its_records() -> None:
    letter = {
        "window_start": "1970-01-01T00:00:01.000000Z",
        "window_end": "1970-01-01T00:00:02Z",
        "first": "1970-01-01T00:00:01.5Z",
        "last": "1970-01-01T00:00:01.500001Z",
        "topic": "t",
        "partition": 3,
        "bucket": 13,
        "offsets": [7, 9],
        "ids": [70, 90],
        "time": 5,
    }
    made = rows_of_letters([letter])
    place = {"topic": "t", "partition": 3}
    assert made["windows"].to_pylist() == [
        place
        | {"bucket": 13, "start": 1_000_000, "end": 2_000_000, "first": 1_500_000}
        | {"last": 1_500_001, "letter": True}
    ]
    assert made["rows"].to_pylist() == [
        place | {"offset": 7, "id": 70, "time": 5},
        place | {"offset": 9, "id": 90, "time": 5},
    ]
