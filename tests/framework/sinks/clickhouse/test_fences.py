"""Fences of exchanged tables: which INSERTs they refuse, and how a worker finds its table by them."""

from __future__ import annotations

import re

import pytest

from kmr.sinks.clickhouse.fences import Fence, fences_in, is_refused, place_of, refuses

OURS = Fence("hits", ("web", "web.backfill"), ("web2", "web2.backfill"))
"""The fence of the old table: it was `hits`, and is that of the group `web`."""


def _created(fence: Fence) -> str:
    """The CREATE TABLE of a table with a fence, as far as it counts."""
    constraint = re.sub(r".* (`kmr .*)", r"\1", fence.statement("`t`"), flags=re.DOTALL)
    return f"CREATE TABLE t (n Int8, CONSTRAINT {constraint}) ENGINE = MergeTree ORDER BY n"


def _refuses_token(fence: Fence, token: str) -> bool:
    (pattern,) = re.findall(r"'(\^.*)'\)$", fence.statement("`t`"))
    return re.match(pattern.replace("\\\\", "\\"), token) is not None


@pytest.mark.parametrize(
    ("token", "is_in"),
    [
        ("web2:hits:0:0-9", True),
        ("web2.backfill:hits:0:0-9", True),
        ("web:hits:0:0-9", False),
        ("web22:hits:0:0-9", False),
        ("web2xbackfill:hits:0:0-9", False),
        ("", False),
    ],
)
def test_a_fence_refuses_the_tokens_of_the_other_group(token: str, *, is_in: bool) -> None:
    assert _refuses_token(OURS, token) is is_in


def test_a_fence_knows_the_beginning_of_a_long_group_in_a_shared_token() -> None:
    long = "g" * 100
    fence = Fence("hits", ("web",), (long,))
    assert _refuses_token(fence, f"{long}:hits:0:0-9")
    assert _refuses_token(fence, f"{long[:64]}:digest")


def test_a_fence_is_read_from_the_definition_of_its_table() -> None:
    definition = _created(OURS)
    assert fences_in(definition) == [OURS]
    assert refuses(definition, "web2")
    assert not refuses(definition, "web")
    assert is_refused(f"Constraint `kmr {'{'}` for table t is violated")
    assert not is_refused("Constraint `positive` for table t is violated")


def test_a_worker_finds_its_table_under_the_name_that_it_has_now() -> None:
    theirs = Fence("hits2", ("web2", "web2.backfill"), ("web", "web.backfill"))
    exchanged = {"hits": _created(theirs), "hits2": _created(OURS)}
    assert place_of(exchanged, "hits", "web") == "hits2"
    assert place_of(exchanged, "hits2", "web2") == "hits"
    assert place_of(exchanged, "hits", "web2") is None, "the name in the strategy is right"
    assert place_of({"hits": exchanged["hits"]}, "hits", "web") is None, "its table was dropped"
