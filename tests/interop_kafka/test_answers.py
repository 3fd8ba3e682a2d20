"""The comparison of the two brokers' answers finds what differs, and what its tables do not need."""

from pathlib import Path

import pytest

from interop.answers.asking import Answers, Asking
from interop.answers.cases import cases
from interop.answers.comparing import compared
from interop.answers.deviations import DIFFERENCES, REFUSALS
from interop.answers.transactions import DEVIATIONS, Transactions, differing
from interop.answers.versions import Offered, missing_entries
from kmr.broker import Broker, BrokerSettings
from kmr.broker.apis.catalogue import UNSUPPORTED
from kmr.broker.topics.topic_config import TOPIC_SETTINGS
from tests.broker.raw_client import RawClient

API_VERSIONS, UNKNOWN = 18, 999
CASES = [
    (("retention.ms", "1"),),
    (("retention.ms", "x"),),
    (("flush.messages", "1"),),
    (("segment.bytes", "1048576"), ("cleanup.policy", "compact")),
]


@pytest.fixture
async def answers(tmp_path: Path) -> Answers:
    async with Broker(BrokerSettings(data_dir=tmp_path, port=0)) as broker:
        client = await RawClient.connect(broker.bootstrap_servers)
        asking = Asking(client)
        await asking.create(CASES)
        await asking.alter(CASES)
        await client.close()
        assert not list(broker.topics)
    return asking.answers


async def test_a_broker_is_asked_for_every_field(answers: Answers) -> None:
    described = ("DescribeConfigs after IncrementalAlterConfigs", "retention.ms='1'", "configs")
    assert answers[*described, "retention.ms", "value"] == "1"
    assert answers[*described, "retention.ms", "config_source"] == 1
    assert answers[*described, "retention.ms", "documented"] is True
    assert answers[*described, "segment.bytes", "synonyms"] == [
        ("log.segment.bytes", "268435456", 5)
    ]
    for api in ("CreateTopics", "CreateTopics, validate_only", "AlterConfigs"):
        assert answers[api, "retention.ms='x'", "error_code"] == "invalid_config"
        assert answers[api, "retention.ms='1'", "error_code"] == "none"


async def test_only_differences_with_a_reason_are_explained(answers: Answers) -> None:
    theirs = dict(answers)
    assert not compared(answers, theirs).unexplained
    created = "CreateTopics", "flush.messages='1'"
    theirs[*created, "error_code"], theirs[*created, "error_message"] = "none", None
    theirs["CreateTopics", "retention.ms='1'", "configs", "segment.bytes", "value"] = "1073741824"
    result = compared(answers, theirs)
    assert (result.explained.total(), result.unexplained) == (3, [])
    assert len(result.unused) == len(REFUSALS) + len(DIFFERENCES) - 2

    theirs["AlterConfigs", "retention.ms='1'", "error_code"] = "invalid_config"
    theirs["CreateTopics", "retention.ms='x'", "error_code"] = "none"
    theirs["CreateTopics", "retention.ms='1'", "configs", "segment.ms", "value"] = "none"
    assert compared(answers, theirs).unexplained == [
        "CreateTopics, retention.ms='1', configs, segment.ms, value: '604800000', Apache Kafka 'none'",
        "CreateTopics, retention.ms='x', error_code: 'invalid_config', Apache Kafka 'none'",
        "AlterConfigs, retention.ms='1', error_code: 'none', Apache Kafka 'invalid_config'",
    ]


async def test_a_version_that_only_one_broker_offers_needs_an_entry(tmp_path: Path) -> None:
    async with Broker(BrokerSettings(data_dir=tmp_path, port=0)) as broker:
        client = await RawClient.connect(broker.bootstrap_servers)
        software = {"client_software_name": "x", "client_software_version": "1"}
        ours = Offered.of(await client.call(API_VERSIONS, 4, **software))
        await client.close()
    levels = {each: (0, 1) for entry in UNSUPPORTED for each in entry.levels}
    listed = {key: (0, newest + 1) for entry in UNSUPPORTED for key, newest in entry.newest.items()}
    lacking = {key: (0, 0) for entry in UNSUPPORTED for key in entry.apis}
    theirs = Offered({**ours.apis, **listed, **lacking}, {**ours.features, **levels})
    assert not list(missing_entries(ours, theirs))

    assert len(list(missing_entries(ours, ours))) == len(listed) + len(levels)
    changed = Offered(
        {**theirs.apis, API_VERSIONS: (0, 9), UNKNOWN: (0, 0)},
        {**theirs.features, "x.version": (0, 1)},
    )
    assert [each.partition(":")[0] for each in missing_entries(ours, changed)] == [
        f"API {API_VERSIONS}",
        f"API {UNKNOWN}",
        "feature x.version",
    ]


async def test_answers_about_transactions_that_differ_need_a_reason(tmp_path: Path) -> None:
    async with Broker(BrokerSettings(data_dir=tmp_path, port=0)) as broker:
        client = await RawClient.connect(broker.bootstrap_servers)
        transactions = Transactions(client)
        await transactions.ask()
        await client.close()
    ours = transactions.answers
    assert ours["commit"] == ("none", (0, 2)), "the epoch after it"
    assert ours["late records"] == "invalid_producer_epoch"
    theirs = ours | dict.fromkeys(DEVIATIONS, "?")
    assert not differing(ours, theirs)
    assert differing(ours, ours) == [f"{step}: explains nothing" for step in DEVIATIONS]
    assert differing(ours, {**theirs, "commit": "?"}) == [
        f"commit: {ours['commit']!r}, Apache Kafka '?'"
    ]


def test_there_are_cases_for_every_setting() -> None:
    wanted = list(cases())
    assert len(wanted) == len(set(wanted))
    for name in TOPIC_SETTINGS:
        assert len([case for case in wanted if [each for each, _ in case] == [name]]) > 5
