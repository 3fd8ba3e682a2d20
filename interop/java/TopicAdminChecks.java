import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.CreatePartitionsOptions;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.QuorumInfo;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.SecurityDisabledException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicIdException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;

/** Topics, their records and the cluster, by the administrator's client. */
final class TopicAdminChecks {
    private static final short ONE = 1;

    private final Site site;

    TopicAdminChecks(Site site) {
        this.site = site;
    }

    void run(Checks checks) {
        site.administer(checks, "createTopics", this::createTopics);
        site.administer(checks, "createTopics, validate only", this::validateOnly);
        site.administer(checks, "createTopics, refusals", this::refusedTopics);
        site.administer(checks, "deleteTopics, by name and by id", this::deleteTopics);
        site.administer(checks, "describeTopics, by name and by id", this::describeTopics);
        site.administer(checks, "createPartitions", this::createPartitions);
        site.administer(checks, "describeCluster and describeFeatures", this::describeCluster);
        site.administer(checks, "describeMetadataQuorum", this::describeQuorum);
        site.administer(checks, "listOffsets", this::listOffsets);
        site.administer(checks, "deleteRecords", this::deleteRecords);
        site.administer(checks, "describeLogDirs and describeReplicaLogDirs", this::describeLogDirs);
    }

    private void createTopics(Admin admin) throws Exception {
        String topic = Site.name("smoke");
        NewTopic asked = new NewTopic(topic, 3, ONE).configs(Map.of("retention.ms", "1000"));
        CreateTopicsResult result = admin.createTopics(List.of(asked));
        Checks.equal(3, Site.get(result.numPartitions(topic)), "partitions");
        Checks.equal(1, Site.get(result.replicationFactor(topic)), "replication factor");
        Checks.equal("1000", Site.get(result.config(topic)).get("retention.ms").value(), "setting");
        Checks.that(!Site.get(result.topicId(topic)).equals(Uuid.ZERO_UUID), "it has an id");
        Checks.that(Site.get(admin.listTopics().names()).contains(topic), "it is listed");
        Checks.raises(TopicExistsException.class, () -> Site.get(admin.createTopics(List.of(asked)).all()));
        String placed = Site.name("smoke");
        int node = Site.get(admin.describeCluster().nodes()).iterator().next().id();
        NewTopic withReplicas = new NewTopic(placed, Map.of(0, List.of(node), 1, List.of(node)));
        Checks.equal(2, Site.get(admin.createTopics(List.of(withReplicas)).numPartitions(placed)), "partitions");
    }

    private void validateOnly(Admin admin) throws Exception {
        String topic = Site.name("smoke");
        CreateTopicsOptions options = new CreateTopicsOptions().validateOnly(true);
        CreateTopicsResult result =
            admin.createTopics(List.of(new NewTopic(topic, Optional.of(2), Optional.empty())), options);
        Checks.equal(2, Site.get(result.numPartitions(topic)), "partitions that it would have");
        Checks.that(!Site.get(admin.listTopics().names()).contains(topic), "it was not made");
    }

    private void refusedTopics(Admin admin) {
        refused(admin, InvalidTopicException.class, new NewTopic("no good name", 1, ONE));
        refused(admin, InvalidTopicException.class, new NewTopic("x".repeat(250), 1, ONE));
        refused(admin, InvalidTopicException.class, new NewTopic("..", 1, ONE));
        refused(admin, InvalidPartitionsException.class, new NewTopic(Site.name("smoke"), 0, ONE));
        refused(admin, InvalidReplicationFactorException.class, new NewTopic(Site.name("smoke"), 1, (short) 3));
        refused(admin, InvalidReplicationFactorException.class, new NewTopic(Site.name("smoke"), 1, (short) 0));
        for (Map<String, String> bad : List.of(
            Map.of("no.such.setting", "1"),
            Map.of("retention.ms", "soon"),
            Map.of("retention.ms", "-2"),
            Map.of("cleanup.policy", "burn"),
            Map.of("compression.type", "rar"))) {
            refused(admin, InvalidConfigurationException.class, new NewTopic(Site.name("smoke"), 1, ONE).configs(bad));
        }
        String dotted = Site.name("smoke").replace('-', '.');
        refused(admin, InvalidTopicException.class,
            new NewTopic(dotted, 1, ONE), new NewTopic(dotted.replace('.', '_'), 1, ONE));
    }

    /** The last one is refused with this error, for validation as for creation. */
    private void refused(Admin admin, Class<? extends Exception> error, NewTopic... asked) {
        String last = asked[asked.length - 1].name();
        try {
            for (int i = 0; i < asked.length - 1; i++) {
                Site.get(admin.createTopics(List.of(asked[i])).all());
            }
        } catch (Exception unexpected) {
            throw new AssertionError(unexpected.toString(), unexpected);
        }
        for (boolean validateOnly : List.of(true, false)) {
            CreateTopicsOptions options = new CreateTopicsOptions().validateOnly(validateOnly);
            Checks.raises(error,
                () -> Site.get(admin.createTopics(List.of(asked[asked.length - 1]), options).values().get(last)));
        }
    }

    private void deleteTopics(Admin admin) throws Exception {
        String byName = site.topic(1);
        String byId = site.topic(1);
        Uuid id = Site.get(admin.describeTopics(List.of(byId)).topicNameValues().get(byId)).topicId();
        Site.get(admin.deleteTopics(List.of(byName)).all());
        Site.get(admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all());
        Set<String> left = Site.get(admin.listTopics().names());
        Checks.that(!left.contains(byName) && !left.contains(byId), "both are gone");
        Checks.raises(UnknownTopicOrPartitionException.class, () -> Site.get(admin.deleteTopics(List.of(byName)).all()));
        Checks.raises(UnknownTopicIdException.class,
            () -> Site.get(admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all()));
    }

    private void describeTopics(Admin admin) throws Exception {
        String topic = site.topic(2);
        String missing = Site.name("missing");
        DescribeTopicsOptions options = new DescribeTopicsOptions().includeAuthorizedOperations(true);
        var described = admin.describeTopics(List.of(topic, missing), options).topicNameValues();
        TopicDescription seen = Site.get(described.get(topic));
        Checks.equal(2, seen.partitions().size(), "partitions");
        Checks.that(!seen.isInternal(), "it is not internal");
        Checks.that(seen.authorizedOperations().contains(AclOperation.WRITE), "one may write to it");
        Checks.equal(1, seen.partitions().get(0).isr().size(), "replicas in sync");
        Checks.raises(UnknownTopicOrPartitionException.class, () -> Site.get(described.get(missing)));
        TopicCollection byId = TopicCollection.ofTopicIds(List.of(seen.topicId()));
        Checks.equal(topic, Site.get(admin.describeTopics(byId).topicIdValues().get(seen.topicId())).name(), "name by id");
        Uuid unknown = Uuid.randomUuid();
        TopicCollection byUnknownId = TopicCollection.ofTopicIds(List.of(unknown));
        Checks.raises(UnknownTopicIdException.class,
            () -> Site.get(admin.describeTopics(byUnknownId).topicIdValues().get(unknown)));
        Checks.that(Site.get(admin.listTopics(new ListTopicsOptions().listInternal(true)).names()).contains(topic),
            "it is listed among internal ones");
    }

    private void createPartitions(Admin admin) throws Exception {
        String topic = site.topic(1);
        CreatePartitionsOptions validateOnly = new CreatePartitionsOptions().validateOnly(true);
        Site.get(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4)), validateOnly).all());
        Checks.equal(1, partitions(admin, topic), "partitions after validation");
        Site.get(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all());
        Checks.equal(4, partitions(admin, topic), "partitions");
        for (int count : new int[] {4, 2, 0}) {
            Checks.raises(InvalidPartitionsException.class,
                () -> Site.get(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(count))).all()));
        }
        Checks.raises(UnknownTopicOrPartitionException.class,
            () -> Site.get(admin.createPartitions(Map.of(Site.name("missing"), NewPartitions.increaseTo(4))).all()));
    }

    private static int partitions(Admin admin, String topic) throws Exception {
        return Site.get(admin.describeTopics(List.of(topic)).topicNameValues().get(topic)).partitions().size();
    }

    private void describeCluster(Admin admin) throws Exception {
        DescribeClusterResult cluster = admin.describeCluster();
        Checks.equal(1, Site.get(cluster.nodes()).size(), "nodes");
        Checks.equal(Site.get(cluster.nodes()).iterator().next(), Site.get(cluster.controller()), "controller");
        Checks.that(!Site.get(cluster.clusterId()).isEmpty(), "the cluster has an id");
        Site.get(admin.describeFeatures().featureMetadata());
        Set<AclOperation> operations = Site.get(admin.describeCluster(
            new DescribeClusterOptions().includeAuthorizedOperations(true)).authorizedOperations());
        Checks.that(operations.containsAll(Set.of(AclOperation.CREATE, AclOperation.ALTER)), "everything is allowed");
    }

    private void describeQuorum(Admin admin) throws Exception {
        QuorumInfo quorum = Site.get(admin.describeMetadataQuorum().quorumInfo());
        Checks.equal(Site.get(admin.describeCluster().controller()).id(), quorum.leaderId(), "leader");
        Checks.equal(1, quorum.voters().size(), "voters");
    }

    private void listOffsets(Admin admin) throws Exception {
        TopicPartition partition = new TopicPartition(site.topic(1), 0);
        try (KafkaProducer<String, String> producer = site.producer()) {
            for (long timestamp : new long[] {1000, 5000, 3000}) {
                Site.get(producer.send(new ProducerRecord<>(partition.topic(), 0, timestamp, "key", "value")));
            }
        }
        Checks.equal(0L, offset(admin, partition, OffsetSpec.earliest()).offset(), "earliest");
        Checks.equal(3L, offset(admin, partition, OffsetSpec.latest()).offset(), "latest");
        Checks.equal(1L, offset(admin, partition, OffsetSpec.maxTimestamp()).offset(), "offset of the latest timestamp");
        Checks.equal(5000L, offset(admin, partition, OffsetSpec.maxTimestamp()).timestamp(), "latest timestamp");
        Checks.equal(1L, offset(admin, partition, OffsetSpec.forTimestamp(2000)).offset(), "first of 2000 ms and later");
        Checks.equal(-1L, offset(admin, partition, OffsetSpec.forTimestamp(9000)).offset(), "after the last");
        Checks.equal(0L, offset(admin, partition, OffsetSpec.earliestLocal()).offset(), "earliest on this disk");
        Checks.equal(-1L, offset(admin, partition, OffsetSpec.latestTiered()).offset(), "latest on tiered storage");
        TopicPartition empty = new TopicPartition(site.topic(1), 0);
        Checks.equal(-1L, offset(admin, empty, OffsetSpec.maxTimestamp()).offset(), "latest timestamp of nothing");
    }

    private static ListOffsetsResultInfo offset(Admin admin, TopicPartition partition, OffsetSpec spec) throws Exception {
        return Site.get(admin.listOffsets(Map.of(partition, spec)).partitionResult(partition));
    }

    private void deleteRecords(Admin admin) throws Exception {
        TopicPartition partition = new TopicPartition(site.topic(1), 0);
        site.produce(partition, 10);
        var deleted = admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(4))).lowWatermarks();
        Checks.equal(4L, Site.get(deleted.get(partition)).lowWatermark(), "low watermark");
        Checks.equal("4", site.values(partition, "read_uncommitted").get(0), "first record that is left");
        Checks.raises(OffsetOutOfRangeException.class,
            () -> Site.get(admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(11))).all()));
        var all = admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(-1))).lowWatermarks();
        Checks.equal(10L, Site.get(all.get(partition)).lowWatermark(), "low watermark after all were deleted");
    }

    private void describeLogDirs(Admin admin) throws Exception {
        TopicPartition partition = new TopicPartition(site.topic(1), 0);
        site.produce(partition, 10);
        int node = Site.get(admin.describeCluster().controller()).id();
        Map<String, LogDirDescription> directories = Site.get(admin.describeLogDirs(List.of(node)).allDescriptions()).get(node);
        Checks.equal(1, directories.size(), "directories");
        LogDirDescription directory = directories.values().iterator().next();
        Checks.that(directory.replicaInfos().get(partition).size() > 0, "the partition has bytes on disk");
        Checks.that(directory.totalBytes().orElse(0) > 0, "the size of the disk is known");
        TopicPartitionReplica replica = new TopicPartitionReplica(partition.topic(), 0, node);
        var found = Site.get(admin.describeReplicaLogDirs(List.of(replica)).values().get(replica));
        Checks.equal(directories.keySet(), Set.of(found.getCurrentReplicaLogDir()), "where the replica is");
    }
}
