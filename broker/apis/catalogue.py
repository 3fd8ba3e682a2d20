"""Every API of Kafka: those that are served, and those that are not, with what clients get instead.

`SERVED` is collected from the modules of this package. `UNSUPPORTED` lists the rest, and features that are
settings or versions of an API; `kmr broker features` and docs/broker.md show it. An API that is not served
is not advertised. A client that calls it anyway loses its connection, as with Kafka, and client libraries
report UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from .api import AdvertisedVersions, Api, RawApi

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import ModuleType

    from .api import AnyApi


def collect_apis() -> Iterator[AnyApi]:
    """Return the APIs of every module in the rooms of this package."""
    package = import_module(__package__)
    for each in walk_packages(package.__path__, f"{__package__}."):
        yield from apis_of(import_module(each.name))


def apis_of(module: ModuleType) -> list[AnyApi]:
    """Return the APIs of one module."""
    return [each for each in vars(module).values() if isinstance(each, (Api, RawApi))]


SERVED: Final[Sequence[AnyApi]] = tuple(collect_apis())
"""Every API of this broker; several for one key serve different versions."""


def advertised_versions(apis: Sequence[AnyApi]) -> list[AdvertisedVersions]:
    """Return the versions of each API, which several entries may serve."""
    ranges: dict[int, tuple[int, int]] = {}
    for api in apis:
        low, high = ranges.get(api.key, (api.min_version, api.max_version))
        ranges[api.key] = (min(low, api.min_version), max(high, api.max_version))
    return [AdvertisedVersions(key, *ranges[key]) for key in sorted(ranges)]


class Unsupported(NamedTuple):
    """A feature of Kafka that this broker does not have.

    Attributes:
        feature: its name, with the KIP if there is one.
        instead: what clients get, and what to do.
        apis: keys of the APIs that are not served because of it; none for a setting or a version.
        newest: by the key of an API that is served, the newest version of it that does not need the feature.
        levels: names of the features in Kafka's ApiVersions that are not offered because of it (KIP-584).
    """

    feature: str
    instead: str
    apis: tuple[int, ...] = ()
    newest: Mapping[int, int] = MappingProxyType({})
    levels: tuple[str, ...] = ()


UNSUPPORTED: Final[Sequence[Unsupported]] = (
    Unsupported(
        "Replication, several nodes",
        "One node leads every partition: replication factors other than 1 and -1 are refused with"
        " INVALID_REPLICATION_FACTOR, min.insync.replicas is 1, acks=all means this node. For more, use"
        " Apache Kafka with unchanged clients.",
        (56,),
        levels=("eligible.leader.replicas.version",),
    ),
    Unsupported(
        "Controller quorum: KRaft (KIP-595, KIP-853), broker registration",
        "There is no separate controller; DescribeCluster and DescribeQuorum name the one node, which leads"
        " an empty metadata log.",
        (52, 53, 54, 58, 59, 62, 63, 64, 67, 70, 80, 81, 82),
        levels=("kraft.version", "metadata.version"),
    ),
    Unsupported(
        "Changing feature levels (KIP-584)",
        "ApiVersions lists two features: group.version 1 and transaction.version 2.",
        (57,),
    ),
    Unsupported(
        "Several log directories (KIP-113, KIP-858)",
        "There is one, which DescribeLogDirs shows.",
        (34, 73),
    ),
    Unsupported(
        "Moving partitions and their leadership (KIP-455, KIP-460)",
        "The one node leads every partition.",
        (43, 45, 46),
    ),
    Unsupported(
        "Share groups (KIP-932)",
        "Share consumers get an error that they are not supported.",
        (76, 77, 78, 79, 83, 84, 85, 86, 87, 90, 91, 92),
        levels=("share.version",),
    ),
    Unsupported(
        "Streams groups (KIP-1071)",
        "Kafka Streams uses classic groups, which is its default.",
        (88, 89),
        levels=("streams.version",),
    ),
    Unsupported("Delegation tokens (KIP-48)", "Not served.", (38, 39, 40, 41)),
    Unsupported(
        "SASL by GSSAPI (Kerberos) and OAUTHBEARER",
        "Refused with UNSUPPORTED_SASL_MECHANISM and the list of mechanisms: PLAIN, SCRAM-SHA-256,"
        " SCRAM-SHA-512.",
    ),
    Unsupported(
        "Administering users and access rules by clients (KIP-554, KIP-11)",
        "`kmr broker user` and `kmr broker acl` change the files of --users and --acls; changes apply within"
        " a second.",
        (29, 30, 31, 50, 51),
    ),
    Unsupported(
        "Client quotas (KIP-13, KIP-124, KIP-546)",
        "throttle_time_ms is 0. The broker limits connections, memory and sizes of requests instead.",
        (48, 49),
    ),
    Unsupported(
        "Finding and aborting hanging transactions (KIP-664)",
        "A start ends transactions that the log of transactions does not know, and /metrics counts those that"
        " are open.",
        (27, 61, 65, 66),
    ),
    Unsupported(
        "Client telemetry (KIP-714)",
        "Clients see that the broker does not collect their metrics, and send none.",
        (71, 72),
    ),
    Unsupported(
        "Settings of client metrics and loggers (KIP-714, KIP-412), of share and streams groups",
        "Topics, the broker and groups have settings; other resource types are refused with INVALID_REQUEST."
        " Those of groups are consumer.session.timeout.ms and consumer.heartbeat.interval.ms; others are"
        " refused with INVALID_CONFIG.",
    ),
    Unsupported(
        "Tiered storage (KIP-405)",
        "remote.storage.enable and local.retention.* accept only their defaults; other values are refused"
        " with INVALID_CONFIG.",
    ),
    Unsupported(
        "Changing the broker's settings while it runs (KIP-226)",
        "They are flags of `kmr broker serve`; altering them is refused with INVALID_REQUEST. Settings"
        " of topics take effect at once.",
    ),
    Unsupported(
        "Syncing by number of messages, per topic (flush.messages, flush.ms)",
        "--fsync decides for the whole broker when records are synced; values of these two settings that it"
        " does not satisfy are refused with INVALID_CONFIG.",
    ),
    Unsupported(
        "Fetching from the closest replica (KIP-392), racks",
        "There is one node; client.rack has no effect.",
    ),
    Unsupported(
        "Record formats before Kafka 0.11 (message format 0 and 1)",
        "Produce 0 to 2 is answered with UNSUPPORTED_VERSION, older batches within a request with"
        " UNSUPPORTED_FOR_MESSAGE_FORMAT.",
    ),
    Unsupported(
        "Internal topics of several partitions, with settings of their own",
        "__consumer_offsets and __transaction_state have one partition each. Clients can list and read them;"
        " changing, deleting or producing to them is refused with INVALID_TOPIC_EXCEPTION.",
    ),
    Unsupported(
        "Removal of transaction markers by compaction",
        "Compacted topics keep the markers of transactions whose records are gone.",
    ),
)
"""Every feature of Kafka's protocol that this broker does not have."""


def unsupported_feature(api_key: int) -> str:
    """Return the feature that an API belongs to; "" for an API that is served or unknown."""
    return next((entry.feature for entry in UNSUPPORTED if api_key in entry.apis), "")
