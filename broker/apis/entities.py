"""The entities of kio that handlers build or name, each imported when it is first used.

A dataclass takes a millisecond to make: all of them were a quarter of the time in which a broker starts.
A name with a version (`V3`) is that of an older message, which has its own handler.
"""

from typing import TYPE_CHECKING

from kmr._lazy import lazy_exports

if TYPE_CHECKING:
    from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest
    from kio.schema.add_offsets_to_txn.v4.response import AddOffsetsToTxnResponse
    from kio.schema.add_partitions_to_txn.v3.request import (
        AddPartitionsToTxnRequest as AddPartitionsToTxnRequestV3,
    )
    from kio.schema.add_partitions_to_txn.v3.response import (
        AddPartitionsToTxnPartitionResult as AddPartitionsToTxnPartitionResultV3,
    )
    from kio.schema.add_partitions_to_txn.v3.response import (
        AddPartitionsToTxnResponse as AddPartitionsToTxnResponseV3,
    )
    from kio.schema.add_partitions_to_txn.v3.response import (
        AddPartitionsToTxnTopicResult as AddPartitionsToTxnTopicResultV3,
    )
    from kio.schema.add_partitions_to_txn.v5.request import (
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnTransaction,
    )
    from kio.schema.add_partitions_to_txn.v5.response import (
        AddPartitionsToTxnPartitionResult,
        AddPartitionsToTxnResponse,
        AddPartitionsToTxnResult,
        AddPartitionsToTxnTopicResult,
    )
    from kio.schema.alter_configs.v2.request import AlterConfigsRequest
    from kio.schema.alter_configs.v2.response import (
        AlterConfigsResourceResponse,
        AlterConfigsResponse,
    )
    from kio.schema.api_versions.v4.request import ApiVersionsRequest
    from kio.schema.api_versions.v4.response import (
        ApiVersion,
        ApiVersionsResponse,
        FinalizedFeatureKey,
        SupportedFeatureKey,
    )
    from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
    from kio.schema.consumer_group_describe.v1.response import (
        Assignment as ConsumerDescribedAssignment,
    )
    from kio.schema.consumer_group_describe.v1.response import ConsumerGroupDescribeResponse
    from kio.schema.consumer_group_describe.v1.response import (
        DescribedGroup as ConsumerDescribedGroup,
    )
    from kio.schema.consumer_group_describe.v1.response import Member as ConsumerDescribedMember
    from kio.schema.consumer_group_describe.v1.response import (
        TopicPartitions as ConsumerDescribedTopicPartitions,
    )
    from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
    from kio.schema.consumer_group_heartbeat.v1.response import Assignment as ConsumerAssignment
    from kio.schema.consumer_group_heartbeat.v1.response import ConsumerGroupHeartbeatResponse
    from kio.schema.consumer_group_heartbeat.v1.response import (
        TopicPartitions as ConsumerTopicPartitions,
    )
    from kio.schema.create_partitions.v3.request import (
        CreatePartitionsRequest,
        CreatePartitionsTopic,
    )
    from kio.schema.create_partitions.v3.response import (
        CreatePartitionsResponse,
        CreatePartitionsTopicResult,
    )
    from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
    from kio.schema.create_topics.v7.response import (
        CreatableTopicConfigs,
        CreatableTopicResult,
        CreateTopicsResponse,
    )
    from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
    from kio.schema.delete_groups.v2.response import DeletableGroupResult, DeleteGroupsResponse
    from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest
    from kio.schema.delete_records.v2.response import (
        DeleteRecordsPartitionResult,
        DeleteRecordsResponse,
        DeleteRecordsTopicResult,
    )
    from kio.schema.delete_topics.v5.request import DeleteTopicsRequest as DeleteTopicsRequestV5
    from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
    from kio.schema.delete_topics.v6.response import DeletableTopicResult, DeleteTopicsResponse
    from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
    from kio.schema.describe_cluster.v2.response import (
        DescribeClusterBroker,
        DescribeClusterResponse,
    )
    from kio.schema.describe_configs.v4.request import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
    )
    from kio.schema.describe_configs.v4.response import (
        DescribeConfigsResourceResult,
        DescribeConfigsResponse,
        DescribeConfigsResult,
        DescribeConfigsSynonym,
    )
    from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
    from kio.schema.describe_groups.v6.response import (
        DescribedGroup,
        DescribedGroupMember,
        DescribeGroupsResponse,
    )
    from kio.schema.describe_log_dirs.v5.request import DescribeLogDirsRequest
    from kio.schema.describe_log_dirs.v5.response import (
        DescribeLogDirsPartition,
        DescribeLogDirsResponse,
        DescribeLogDirsResult,
        DescribeLogDirsTopic,
    )
    from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest
    from kio.schema.describe_quorum.v2.request import PartitionData as RequestedPartition
    from kio.schema.describe_quorum.v2.response import (
        DescribeQuorumResponse,
        Listener,
        Node,
        PartitionData,
        ReplicaState,
        TopicData,
    )
    from kio.schema.describe_topic_partitions.v0.request import (
        DescribeTopicPartitionsRequest,
        TopicRequest,
    )
    from kio.schema.describe_topic_partitions.v0.response import (
        Cursor,
        DescribeTopicPartitionsResponse,
        DescribeTopicPartitionsResponsePartition,
        DescribeTopicPartitionsResponseTopic,
    )
    from kio.schema.end_txn.v5.request import EndTxnRequest
    from kio.schema.end_txn.v5.response import EndTxnResponse
    from kio.schema.find_coordinator.v3.request import (
        FindCoordinatorRequest as FindCoordinatorRequestV3,
    )
    from kio.schema.find_coordinator.v3.response import (
        FindCoordinatorResponse as FindCoordinatorResponseV3,
    )
    from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
    from kio.schema.find_coordinator.v6.response import Coordinator, FindCoordinatorResponse
    from kio.schema.heartbeat.v4.request import HeartbeatRequest
    from kio.schema.heartbeat.v4.response import HeartbeatResponse
    from kio.schema.incremental_alter_configs.v1.request import IncrementalAlterConfigsRequest
    from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
    from kio.schema.init_producer_id.v5.response import InitProducerIdResponse
    from kio.schema.join_group.v9.request import JoinGroupRequest
    from kio.schema.join_group.v9.response import JoinGroupResponse, JoinGroupResponseMember
    from kio.schema.leave_group.v2.request import LeaveGroupRequest as LeaveGroupRequestV2
    from kio.schema.leave_group.v2.response import LeaveGroupResponse as LeaveGroupResponseV2
    from kio.schema.leave_group.v5.request import LeaveGroupRequest
    from kio.schema.leave_group.v5.response import LeaveGroupResponse, MemberResponse
    from kio.schema.list_config_resources.v1.request import ListConfigResourcesRequest
    from kio.schema.list_config_resources.v1.response import (
        ConfigResource,
        ListConfigResourcesResponse,
    )
    from kio.schema.list_groups.v5.request import ListGroupsRequest
    from kio.schema.list_groups.v5.response import ListedGroup, ListGroupsResponse
    from kio.schema.list_offsets.v11.request import ListOffsetsPartition, ListOffsetsRequest
    from kio.schema.list_offsets.v11.response import (
        ListOffsetsPartitionResponse,
        ListOffsetsResponse,
        ListOffsetsTopicResponse,
    )
    from kio.schema.metadata.v10.request import MetadataRequest as MetadataRequestV10
    from kio.schema.metadata.v10.response import MetadataResponse as MetadataResponseV10
    from kio.schema.metadata.v10.response import MetadataResponseTopic as MetadataResponseTopicV10
    from kio.schema.metadata.v13.request import MetadataRequest, MetadataRequestTopic
    from kio.schema.metadata.v13.response import (
        MetadataResponse,
        MetadataResponseBroker,
        MetadataResponsePartition,
        MetadataResponseTopic,
    )
    from kio.schema.offset_commit.v9.request import OffsetCommitRequest, OffsetCommitRequestTopic
    from kio.schema.offset_commit.v9.response import (
        OffsetCommitResponse,
        OffsetCommitResponsePartition,
        OffsetCommitResponseTopic,
    )
    from kio.schema.offset_commit.v10.request import OffsetCommitRequest as OffsetCommitRequestV10
    from kio.schema.offset_commit.v10.response import (
        OffsetCommitResponse as OffsetCommitResponseV10,
    )
    from kio.schema.offset_commit.v10.response import (
        OffsetCommitResponseTopic as OffsetCommitResponseTopicV10,
    )
    from kio.schema.offset_delete.v0.request import (
        OffsetDeleteRequest,
        OffsetDeleteRequestPartition,
    )
    from kio.schema.offset_delete.v0.response import (
        OffsetDeleteResponse,
        OffsetDeleteResponsePartition,
        OffsetDeleteResponseTopic,
    )
    from kio.schema.offset_fetch.v7.request import OffsetFetchRequest as OffsetFetchRequestV7
    from kio.schema.offset_fetch.v9.request import (
        OffsetFetchRequest,
        OffsetFetchRequestGroup,
        OffsetFetchRequestTopics,
    )
    from kio.schema.offset_fetch.v9.response import (
        OffsetFetchResponse,
        OffsetFetchResponseGroup,
        OffsetFetchResponsePartitions,
        OffsetFetchResponseTopics,
    )
    from kio.schema.offset_fetch.v10.request import OffsetFetchRequest as OffsetFetchRequestV10
    from kio.schema.offset_fetch.v10.response import OffsetFetchResponse as OffsetFetchResponseV10
    from kio.schema.offset_fetch.v10.response import (
        OffsetFetchResponseGroup as OffsetFetchResponseGroupV10,
    )
    from kio.schema.offset_fetch.v10.response import (
        OffsetFetchResponseTopics as OffsetFetchResponseTopicsV10,
    )
    from kio.schema.offset_for_leader_epoch.v4.request import (
        OffsetForLeaderEpochRequest,
        OffsetForLeaderPartition,
    )
    from kio.schema.offset_for_leader_epoch.v4.response import (
        EpochEndOffset,
        OffsetForLeaderEpochResponse,
        OffsetForLeaderTopicResult,
    )
    from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
    from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
    from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
    from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
    from kio.schema.sync_group.v5.request import SyncGroupRequest
    from kio.schema.sync_group.v5.response import SyncGroupResponse
    from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest

__getattr__, __dir__ = lazy_exports(__name__)
