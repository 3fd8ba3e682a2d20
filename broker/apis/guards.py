"""What a client must be allowed to do for each API, and what is answered when it is not.

Requirements and error codes are those of Kafka's authorizer. Produce and Fetch, which read their requests
themselves, ask `RequestContext.allows` on their own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.apis import special_guards
from broker.apis.common import ResourceType
from broker.apis.guarding import Call, Guard, Need, Needed, Rule
from broker.security.acls import Operation, Resource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.api import Api, RequestContext

__all__ = ["GUARDED", "OPEN", "guarded"]


def guarded(api: Api[Any, Any]) -> Api[Any, Any]:
    """The same API for those who are allowed; of APIs that are not in the table: administrators."""
    if api.key in OPEN:
        return api
    guard = GUARDED.get(api.key, _ADMINISTRATION)
    return replace(api, handler=partial(_run, guard, api))


async def _run(guard: Guard, api: Api[Any, Any], context: RequestContext, request: Any) -> Any:
    return await guard(Call(api, context, request))


# -- what elements of a request need ---------------------------------------------------------------


def _topics(operation: Operation) -> Needed:
    return lambda topic: [Need(operation, Resource.TOPIC, _name(topic))]


def _creates_topic(topic: Any) -> Iterable[Need]:
    return [
        Need(Operation.CREATE, Resource.TOPIC, topic.name),
        Need(Operation.CREATE, Resource.CLUSTER),
    ]


def _groups(operation: Operation) -> Needed:
    return lambda group: [Need(operation, Resource.GROUP, group)]


def _configured(operation: Operation) -> Needed:
    def needed(wanted: Any) -> Iterable[Need]:
        if wanted.resource_type == ResourceType.TOPIC:
            return [Need(operation, Resource.TOPIC, wanted.resource_name)]
        return [Need(operation, Resource.CLUSTER)]

    return needed


def _name(topic: Any) -> str:
    return str(topic.name if hasattr(topic, "name") else topic.topic)


# -- the table -------------------------------------------------------------------------------------

_READS_GROUP = (Operation.READ, Resource.GROUP, "group_id")
_DELETES_GROUP = (Operation.DELETE, Resource.GROUP, "group_id")
_WRITES_TRANSACTION = (Operation.WRITE, Resource.TRANSACTIONAL_ID, "transactional_id")
_ADMINISTRATION: Final = Rule(whole=((Operation.ALTER, Resource.CLUSTER, ""),))
_MEMBERSHIP: Final = Rule(whole=(_READS_GROUP,))

OPEN: Final = frozenset({17, 18, 36, 60})
"""SaslHandshake, ApiVersions, SaslAuthenticate, DescribeCluster: for everybody."""

GUARDED: Final[dict[int, Guard]] = {
    2: Rule(field="topics", each=_topics(Operation.DESCRIBE)),  # ListOffsets
    3: special_guards.metadata,
    8: Rule(whole=(_READS_GROUP,), field="topics", each=_topics(Operation.READ)),  # OffsetCommit
    9: special_guards.offset_fetch,
    10: special_guards.find_coordinator,
    11: _MEMBERSHIP,  # JoinGroup
    12: _MEMBERSHIP,  # Heartbeat
    13: _MEMBERSHIP,  # LeaveGroup
    14: _MEMBERSHIP,  # SyncGroup
    15: Rule(field="groups", each=_groups(Operation.DESCRIBE)),  # DescribeGroups
    16: special_guards.list_groups,
    19: Rule(field="topics", each=_creates_topic),  # CreateTopics
    20: special_guards.delete_topics,
    21: Rule(field="topics", each=_topics(Operation.DELETE)),  # DeleteRecords
    22: special_guards.init_producer_id,
    23: Rule(field="topics", each=_topics(Operation.DESCRIBE)),  # OffsetForLeaderEpoch
    24: special_guards.add_partitions,
    25: Rule(whole=(_WRITES_TRANSACTION, _READS_GROUP)),  # AddOffsetsToTxn
    26: Rule(whole=(_WRITES_TRANSACTION,)),  # EndTxn
    27: _ADMINISTRATION,  # WriteTxnMarkers
    28: Rule(  # TxnOffsetCommit
        whole=(_WRITES_TRANSACTION, _READS_GROUP), field="topics", each=_topics(Operation.READ)
    ),
    29: Rule(whole=((Operation.DESCRIBE, Resource.CLUSTER, ""),), lists=False),  # DescribeAcls
    30: _ADMINISTRATION,  # CreateAcls
    31: _ADMINISTRATION,  # DeleteAcls
    32: Rule(field="resources", each=_configured(Operation.DESCRIBE_CONFIGS)),  # DescribeConfigs
    33: Rule(field="resources", each=_configured(Operation.ALTER_CONFIGS)),  # AlterConfigs
    34: special_guards.alter_replica_log_dirs,
    35: Rule(whole=((Operation.DESCRIBE, Resource.CLUSTER, ""),), lists=False),  # DescribeLogDirs
    37: Rule(field="topics", each=_topics(Operation.ALTER)),  # CreatePartitions
    42: Rule(field="groups_names", each=_groups(Operation.DELETE)),  # DeleteGroups
    43: _ADMINISTRATION,  # ElectLeaders
    44: Rule(
        field="resources", each=_configured(Operation.ALTER_CONFIGS)
    ),  # IncrementalAlterConfigs
    45: _ADMINISTRATION,  # AlterPartitionReassignments
    46: Rule(whole=((Operation.DESCRIBE, Resource.CLUSTER, ""),)),  # ListPartitionReassignments
    47: Rule(whole=(_DELETES_GROUP,), field="topics", each=_topics(Operation.READ)),  # OffsetDelete
    48: Rule(  # DescribeClientQuotas
        whole=((Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, ""),), lists=False
    ),
    50: Rule(  # DescribeUserScramCredentials
        whole=((Operation.DESCRIBE, Resource.CLUSTER, ""),), lists=False
    ),
    51: special_guards.alter_users,
    55: Rule(whole=((Operation.DESCRIBE, Resource.CLUSTER, ""),)),  # DescribeQuorum
    61: Rule(field="topics", each=_topics(Operation.READ)),  # DescribeProducers
    65: Rule(  # DescribeTransactions
        field="transactional_ids",
        each=lambda each: [Need(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, each)],
    ),
    66: special_guards.list_transactions,
    74: Rule(whole=((Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, ""),)),  # ListConfigResources
    75: special_guards.describe_topics,
}
"""By API key; all others are for administrators of the cluster."""
