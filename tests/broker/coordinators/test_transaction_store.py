"""The log of transactional ids: stored states survive a restart, in Kafka's own format."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kmr.broker.coordinators.state_log import MalformedRecord, StateLog
from kmr.broker.coordinators.transaction_state import (
    LAST_EPOCH,
    TransactionalId,
    TransactionState,
    complete,
    end_and_raise_epoch,
)
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
    TransactionalId,
    NAMES,
    st.builds(ProducerIdentity, st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1)),
    INT32,
    st.sampled_from(TransactionState),
    INT64,
    st.frozensets(st.tuples(NAMES, INT32), max_size=5),
    INT64,
)


ENDED = st.builds(
    lambda current, commit, is_complete: _ended(current, commit=commit, is_complete=is_complete),
    TRANSACTIONS,
    st.booleans(),
    st.booleans(),
)


def _ended(current: TransactionalId, *, commit: bool, is_complete: bool) -> TransactionalId:
    """A transaction whose end raised the epoch."""
    producer = current.producer._replace(epoch=min(current.producer.epoch, LAST_EPOCH))
    current = replace(current, producer=producer, state=TransactionState.ONGOING)
    ended = end_and_raise_epoch(
        current, producer, commit=commit, now_ms=5, new_producer_id=lambda: 2**63 - 1
    )
    assert isinstance(ended, TransactionalId)
    return complete(ended, 6) if is_complete else ended


def transaction(name: str, state: TransactionState = TransactionState.EMPTY) -> TransactionalId:
    return TransactionalId(name, ProducerIdentity(1, 2), 3, state, 4)


@given(st.one_of(TRANSACTIONS, ENDED))
def test_a_transaction_is_decoded_as_it_was_encoded(stored: TransactionalId) -> None:
    name = decode_transactional_id(encode_transactional_id(stored.transactional_id))
    assert decode_transaction(name, encode_transaction(stored)) == stored


def test_records_have_the_format_of_kafka() -> None:
    stored = TransactionalId(
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


@given(st.one_of(TRANSACTIONS, ENDED), st.data())
def test_a_torn_record_is_malformed(stored: TransactionalId, data: st.DataObject) -> None:
    whole = encode_transaction(stored)
    torn = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(MalformedRecord):
        decode_transaction("x", torn)


def test_an_end_that_raised_the_epoch_has_the_flexible_format_of_kafka() -> None:
    last = ProducerIdentity(7, LAST_EPOCH)
    partitions = frozenset({("t", 0), ("t", 2), ("u", 1)})
    ongoing = TransactionalId("x", last, 60_000, TransactionState.ONGOING, 1, partitions, 1_000)
    prepared = end_and_raise_epoch(
        ongoing, last, commit=True, now_ms=1_001, new_producer_id=lambda: 100
    )
    assert isinstance(prepared, TransactionalId)
    assert encode_transaction(prepared) == (
        struct.pack(">hqhib", 1, 7, 32_767, 60_000, 2)
        + struct.pack(">bb1sbiib", 3, 2, b"t", 3, 0, 2, 0)
        + struct.pack(">b1sbib", 2, b"u", 2, 1, 0)
        + struct.pack(">qq", 1_001, 1_000)
        + struct.pack(">bbbqbbh", 2, 1, 8, 100, 2, 2, 2)
    )
    assert encode_transaction(complete(prepared, 1_002)) == (
        struct.pack(">hqhib", 1, 100, 0, 60_000, 4)
        + struct.pack(">bqq", 1, 1_002, 1_000)
        + struct.pack(">bbbqbbh", 2, 0, 8, 7, 2, 2, 2)
    )


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
