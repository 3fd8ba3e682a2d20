"""What Apache Kafka has and this broker has not, and what clients see instead.

One table, for `kmr broker features` and for whoever adds an API: each API of Kafka is either served (see
`broker.dispatch.SERVED`) or listed here. An API that is not served is not advertised; a client that sends
it all the same loses its connection, as with Kafka, so libraries report UNSUPPORTED_VERSION by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["UNSUPPORTED", "Unsupported", "unsupported_feature"]


class Unsupported(NamedTuple):
    """A feature of Kafka.

    Attributes:
        feature: its name, and the KIP where it has one.
        instead: what a client sees, and what to do.
        apis: keys of the APIs that are not served for it; none where only a setting or a version is.
    """

    feature: str
    instead: str
    apis: tuple[int, ...] = ()


UNSUPPORTED: Final[Sequence[Unsupported]] = (
    Unsupported(
        "Replication, several nodes",
        "One node leads every partition: replication factors other than 1 and -1 are refused with"
        " INVALID_REPLICATION_FACTOR, min.insync.replicas is 1, acks=all means this node. For more, use"
        " Apache Kafka with unchanged clients.",
        (56,),
    ),
    Unsupported(
        "Controller quorum: KRaft (KIP-595, KIP-853), broker registration",
        "There is no separate controller; DescribeCluster and DescribeQuorum name the one node, which leads"
        " a log of metadata that is empty.",
        (52, 53, 54, 58, 59, 62, 63, 64, 67, 70, 80, 81, 82),
    ),
    Unsupported(
        "Changing feature levels (KIP-584)",
        "ApiVersions lists no features, as a broker without any.",
        (57,),
    ),
    Unsupported(
        "Several log directories (KIP-113, KIP-858)",
        "There is one, which DescribeLogDirs shows; AlterReplicaLogDirs to another one is refused with"
        " LOG_DIR_NOT_FOUND.",
        (73,),
    ),
    Unsupported(
        "Transactions with epochs of their own (KIP-890), two-phase commit (KIP-939)",
        "Producers use the transaction protocol of Kafka up to 3.9, as they do with those brokers.",
    ),
    Unsupported(
        "The consumer group protocol of KIP-848",
        "Consumers with group.protocol=consumer are told that it is not supported (librdkafka's say so"
        " with debug=cgrp only); classic groups (eager, cooperative-sticky, static members) are.",
        (68, 69),
    ),
    Unsupported(
        "Share groups (KIP-932)",
        "Share consumers are told that they are not supported.",
        (76, 77, 78, 79, 83, 84, 85, 86, 87, 90, 91, 92),
    ),
    Unsupported(
        "Streams groups (KIP-1071)",
        "Kafka Streams uses classic groups, which is its default.",
        (88, 89),
    ),
    Unsupported(
        "Delegation tokens (KIP-48)",
        "Not served.",
        (38, 39, 40, 41),
    ),
    Unsupported(
        "SASL by GSSAPI (Kerberos) and OAUTHBEARER",
        "Refused with UNSUPPORTED_SASL_MECHANISM and the list of what is served: PLAIN, SCRAM-SHA-256,"
        " SCRAM-SHA-512.",
    ),
    Unsupported(
        "Several listeners, with and without encryption",
        "There is one, which is encrypted or not.",
    ),
    Unsupported(
        "Altering client quotas (KIP-546); quotas of requests (KIP-124)",
        "One quota for each user, or client id, by --produce-quota-bytes and --fetch-quota-bytes;"
        " DescribeClientQuotas shows it.",
        (49,),
    ),
    Unsupported(
        "Client telemetry (KIP-714)",
        "Clients see that the broker does not collect their metrics and send none.",
        (71, 72),
    ),
    Unsupported(
        "Settings of groups and of client metrics (KIP-848, KIP-714)",
        "Only topics and the broker have settings; other resource types are refused with"
        " INVALID_REQUEST.",
    ),
    Unsupported(
        "Tiered storage (KIP-405)",
        "remote.storage.enable and local.retention.* keep their defaults; others are refused"
        " (INVALID_CONFIG).",
    ),
    Unsupported(
        "Changing the broker's settings while it runs (KIP-226)",
        "They are flags of `kmr broker serve`; altering them is refused with INVALID_REQUEST. Settings"
        " of topics take effect at once.",
    ),
    Unsupported(
        "Syncing by number of messages, per topic (flush.messages, flush.ms)",
        "When records are synced is a setting of the broker, --fsync; values of these two that it does"
        " not keep anyway are refused with INVALID_CONFIG.",
    ),
    Unsupported(
        "Fetch sessions (KIP-227)",
        "Every fetch is a full one: the session id is 0, which clients take for a broker without them.",
    ),
    Unsupported(
        "Fetching from a replica near by (KIP-392), racks",
        "There is one node; client.rack has no effect.",
    ),
    Unsupported(
        "Record formats before Kafka 0.11 (message format 0 and 1)",
        "Produce 0 to 2 is answered with UNSUPPORTED_VERSION, older batches within a request with"
        " UNSUPPORTED_FOR_MESSAGE_FORMAT.",
    ),
    Unsupported(
        "Topic ids in Produce and Fetch (KIP-516 in Produce 13, Fetch 13)",
        "Topics are named; ids are known in Metadata, CreateTopics and DeleteTopics.",
    ),
    Unsupported(
        "Internal topics of several partitions, with settings of their own",
        "__consumer_offsets and __transaction_state have one partition each, to be listed and read;"
        " changing, deleting or producing to them is refused with INVALID_TOPIC_EXCEPTION.",
    ),
    Unsupported(
        "Removal of transaction markers by compaction",
        "Compacted topics keep the markers of transactions whose records are gone.",
    ),
)
"""Every feature of Kafka's protocol that is not there, with what is there instead."""


def unsupported_feature(api_key: int) -> str:
    """The feature that an API belongs to; "" if it is served, or nobody knows it."""
    return next((entry.feature for entry in UNSUPPORTED if api_key in entry.apis), "")
