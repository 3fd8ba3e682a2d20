"""Options, planning and cutting: no broker, no session."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from framework.errors import SettingsError
from framework.record import TopicPartition
from framework.settings import Settings
from framework.spark.chunks import cut_chunks
from framework.spark.offsets import OffsetRange, read_offsets, show_offsets
from framework.spark.options import SourceOptions
from framework.spark.planning import divide, limit_offsets, ranges_between
from framework.spark.settings import EngineSettings, source_options
from framework.testing import batch_of

if TYPE_CHECKING:
    from framework.record import Batch

BASE = {"kafka.bootstrap.servers": "k:9092", "subscribe": "t"}

offsets = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 12)), st.integers(0, 10**12)
)


def parse(**options: str) -> SourceOptions:
    return SourceOptions.parse(BASE | options, streaming=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"assign": '{"t": [0]}'}, "exactly one of assign, subscribe and subscribePattern, not 2"),
        ({"startingOffsets": "5"}, "startingOffsets must be JSON"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "t-0: -3 is no offset"),
        ({"endingOffsets": "latest"}, "endingOffsets is only for batch queries"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be a whole number above 0"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss must be true or false"),
        ({"subscribe": " , "}, "subscribe names no topic"),
        ({"kafka.auto.offset.reset": "earliest"}, "use startingOffsets"),
        ({"kafka.isolation.level": "none"}, r"kafka\.isolation\.level must be one of"),
        ({"kafka.bootstrap.servers": ""}, r"kafka\.bootstrap\.servers is missing"),
        ({"minOffsetsPerTrigger": "1"}, "has no option minoffsetspertrigger"),
        ({"kafka.ssl.truststore.type": "JKS"}, "convert the store to PEM"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse(**options)


def test_a_batch_cannot_begin_at_the_end() -> None:
    with pytest.raises(SettingsError, match="startingOffsets cannot be latest"):
        SourceOptions.parse(BASE | {"startingOffsets": "latest"}, streaming=False)


def test_names_of_options_may_be_in_any_case() -> None:
    found = parse(STARTINGOFFSETS="Earliest", MaxOffsetsPerTrigger="7", **{"Kafka.Client.Id": "me"})
    assert found.max_offsets_per_trigger == 7
    assert found.client.client_id == "me"


def test_javas_login_line_is_understood() -> None:
    line = 'org.apache.x.ScramLoginModule required username="u" password="p\\"q";'
    found = parse(**{"kafka.sasl.jaas.config": line, "kafka.security.protocol": "SASL_PLAINTEXT"})
    assert (found.client.sasl_username, found.client.sasl_password) == ("u", 'p"q')


@given(offsets)
def test_offsets_are_read_as_they_were_written(found: dict[TopicPartition, int]) -> None:
    assert read_offsets(show_offsets(found)) == found
    assert str(show_offsets(found)) == str(show_offsets(dict(reversed(found.items()))))


@given(offsets, st.data())
def test_a_limit_moves_every_partition_and_reaches_the_end(
    start: dict[TopicPartition, int], data: st.DataObject
) -> None:
    end = {p: offset + data.draw(st.integers(0, 1000)) for p, offset in start.items()}
    rows = data.draw(st.integers(1, 500))
    for _ in range(10_000):
        until = limit_offsets(start, end, rows)
        ranges = ranges_between(start, until)
        # a share below one offset is rounded up, so that no partition starves
        assert sum(r.size for r in ranges) <= rows + len(end)
        assert {r.topic_partition for r in ranges} == {p for p in end if start[p] < end[p]}
        if not ranges:
            break
        start = until
    assert start == end


@given(
    st.lists(st.integers(1, 10_000), max_size=5), st.integers(1, 20), st.sampled_from([None, 128])
)
def test_divided_ranges_are_the_same_offsets(
    sizes: list[int], parts: int, grid: int | None
) -> None:
    ranges = [OffsetRange("t", p, 50, 50 + size) for p, size in enumerate(sizes)]
    divided = divide(ranges, parts, grid=grid)
    whole: dict[int, tuple[int, int]] = {}
    for piece in divided:
        assert piece.size > 0
        first, end = whole.get(piece.partition, (piece.first, piece.first))
        assert end == piece.first
        whole[piece.partition] = (first, piece.end)
        assert grid is None or piece.end % grid == 0 or piece.end == 50 + sizes[piece.partition]
    assert whole == {p: (50, 50 + size) for p, size in enumerate(sizes)}


def pieces(values: list[bytes], cuts: list[int], first: int) -> list[Batch]:
    """The same records as batches, fetched in another way."""
    edges = [0, *sorted({c for c in cuts if 0 < c < len(values)}), len(values)]
    return [batch_of("t", 0, first + a, values[a:b]) for a, b in pairwise(edges)]


@hypothesis_settings(deadline=None)
@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=80),
    st.lists(st.integers(0, 80)),
    st.lists(st.integers(0, 80)),
    st.integers(0, 100),
)
def test_chunks_do_not_depend_on_how_records_were_fetched(
    values: list[bytes], one: list[int], other: list[int], first: int
) -> None:
    def chunks(cuts: list[int]) -> list[tuple[Any, ...]]:
        found = list(cut_chunks(pieces(values, cuts, first), grid=16, max_bytes=100))
        return [
            (c.first, c.last, c.end, [v for b in c.batches for v in b.records["value"].to_pylist()])
            for c in found
        ]

    found = chunks(one)
    assert found == chunks(other)
    assert [value for *_, part in found for value in part] == values
    assert found[0][0] == first
    for before, after in pairwise(found):
        assert before[1] + 1 == after[0]
        assert (before[2] == "count") == (after[0] % 16 == 0)
    assert all(sum(map(len, part)) <= 100 or len(part) == 1 for *_, part in found)


def settings(**more: Any) -> Settings:
    return Settings(topics=("a", "b"), group="g", bootstrap_servers="k:9092", **more)


def test_a_workers_settings_become_options_that_the_source_takes() -> None:
    found = source_options(settings(), EngineSettings(checkpoint="c", min_partitions=4))
    parsed = SourceOptions.parse(found, streaming=True)
    assert parsed.subscription.topics == ("a", "b")
    assert (parsed.group, parsed.min_partitions) == ("g", 4)


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        ({"checkpoint": ""}, "needs --checkpoint"),
        ({"checkpoint": "c", "trigger": "soon"}, "--trigger must be a time such as 2s"),
        ({"checkpoint": "c", "master": "sc://h"}, "cannot run on Spark Connect"),
        (
            {"checkpoint": "c", "max_offsets_per_trigger": 0},
            "max-offsets-per-trigger must be above",
        ),
    ],
)
def test_wrong_engine_settings_are_refused(given_settings: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        EngineSettings(**given_settings)


def test_a_trigger_is_an_interval_or_what_is_available() -> None:
    assert EngineSettings(checkpoint="c", trigger="1.5s").trigger_arguments() == {
        "processingTime": "1500 milliseconds"
    }
    available = EngineSettings(checkpoint="c", trigger="available-now")
    assert available.trigger_arguments() == {"availableNow": True}
