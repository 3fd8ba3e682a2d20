"""The log of transactional ids: stored states survive a restart, in Kafka's own format."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kmr.broker.coordinators.state_log import MalformedRecord, StateLog
from kmr.broker.coordinators.transaction_state import Transaction, TransactionState
from kmr.broker.coordinators.transaction_store import (
    TransactionStore,
    decode_transaction,
    decode_transactional_id,
    encode_transaction,
    encode_transactional_id,
)
from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.producers import ProducerIdentity
from kmr.broker.log.records import NewRecord, build_batch, parse_header

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = LogConfig(fsync="os")
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
INT32 = st.integers(0, 2**31 - 1)
INT64 = st.integers(-1, 2**63 - 1)
TRANSACTIONS = st.builds(
    Transaction,
    NAMES,
    st.builds(ProducerIdentity, st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1)),
    INT32,
    st.sampled_from(TransactionState),
    INT64,
    st.frozensets(st.tuples(NAMES, INT32), max_size=5),
    INT64,
)


def transaction(name: str, state: TransactionState = TransactionState.EMPTY) -> Transaction:
    return Transaction(name, ProducerIdentity(1, 2), 3, state, 4)


@given(TRANSACTIONS)
def test_a_transaction_is_decoded_as_it_was_encoded(stored: Transaction) -> None:
    name = decode_transactional_id(encode_transactional_id(stored.transactional_id))
    assert decode_transaction(name, encode_transaction(stored)) == stored


def test_records_have_the_format_of_kafka() -> None:
    stored = Transaction(
        "x",
        ProducerIdentity(7, 3),
        60_000,
        TransactionState.ONGOING,
        1_001,
        frozenset({("t", 0), ("t", 2), ("u", 1)}),
        1_000,
    )
    assert encode_transactional_id("x") == b"\0\0\0\1x"
    assert encode_transaction(stored) == (
        struct.pack(">hqhib", 0, 7, 3, 60_000, 1)
        + struct.pack(">i", 2)
        + struct.pack(">h1siii", 1, b"t", 2, 0, 2)
        + struct.pack(">h1sii", 1, b"u", 1, 1)
        + struct.pack(">qq", 1_001, 1_000)
    )


@given(TRANSACTIONS, st.data())
def test_a_torn_record_is_malformed(stored: Transaction, data: st.DataObject) -> None:
    whole = encode_transaction(stored)
    torn = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(MalformedRecord):
        decode_transaction("x", torn)


def test_the_newest_state_of_each_id_survives_a_restart(tmp_path: Path) -> None:
    store = TransactionStore(StateLog(tmp_path, CONFIG, clean=True))
    store.put(transaction("a"))
    store.put(transaction("b"))
    store.put(transaction("gone"))
    store.put(transaction("a", TransactionState.PREPARE_COMMIT))
    store.remove("gone")
    store.close()
    store = TransactionStore(StateLog(tmp_path, CONFIG, clean=True))
    assert {each.transactional_id: each.state for each in store} == {
        "a": TransactionState.PREPARE_COMMIT,
        "b": TransactionState.EMPTY,
    }
    store.close()


async def test_a_log_that_is_too_large_is_rewritten(tmp_path: Path) -> None:
    def size() -> int:
        return sum(each.stat().st_size for each in tmp_path.glob("*.log"))

    store = TransactionStore(StateLog(tmp_path, CONFIG, clean=True, rewrite_bytes=10_000))
    store.put(transaction("rare"))
    for _ in range(500):
        store.put(transaction("busy"))
    assert size() > 20_000
    await store.maintain()
    assert size() < 1_000
    for _ in range(500):
        store.put(transaction("busy", TransactionState.ONGOING))
    store.close()
    store = TransactionStore(StateLog(tmp_path, CONFIG, clean=True, rewrite_bytes=10_000))
    assert size() < 1_000
    assert {each.transactional_id for each in store} == {"rare", "busy"}
    store.close()


def test_records_of_a_newer_version_are_skipped_with_a_warning(tmp_path: Path) -> None:
    store = TransactionStore(StateLog(tmp_path, CONFIG, clean=True))
    store.put(transaction("a"))
    store.close()
    log = PartitionLog.open(tmp_path, CONFIG, clean=True)
    unknown_state = struct.pack(">hqhibiqq", 0, 1, 1, 1, 99, 0, 1, 1)
    records = [NewRecord(b"\0\x63?", b"?"), NewRecord(encode_transactional_id("b"), unknown_state)]
    batch = build_batch(records)
    log.append(batch, [parse_header(batch)], now_ms=0)
    log.close()
    with capture_logs() as logs:
        store = TransactionStore(StateLog(tmp_path, CONFIG, clean=True))
    assert [each.transactional_id for each in store] == ["a"]
    assert [(log["log_level"], log["records"]) for log in logs] == [("warning", 2)]
    store.close()
