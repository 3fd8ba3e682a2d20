import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.DescribeConsumerGroupsOptions;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.GroupSubscribedToTopicException;
import org.apache.kafka.common.errors.UnknownMemberIdException;

/** Consumer groups and their offsets, by the administrator's client. */
final class GroupAdminChecks {
    private final Site site;

    GroupAdminChecks(Site site) {
        this.site = site;
    }

    /** A check that has an administrator and a group with one member and a committed offset. */
    private interface Body {
        void run(Admin admin, Group group) throws Exception;
    }

    /** A group: its id, the only partition that it consumes, and its member, as long as that is there. */
    private record Group(String id, TopicPartition partition, KafkaConsumer<String, String> member) {
        Map<TopicPartition, OffsetAndMetadata> offsets(long offset) {
            return Map.of(partition, new OffsetAndMetadata(offset, "by hand"));
        }
    }

    void run(Checks checks) {
        check(checks, "listGroups", this::listGroups);
        check(checks, "describeConsumerGroups", this::describe);
        check(checks, "describeClassicGroups", this::describeClassic);
        check(checks, "listConsumerGroupOffsets", this::listOffsets);
        check(checks, "alterConsumerGroupOffsets", this::alterOffsets);
        check(checks, "deleteConsumerGroupOffsets", this::deleteOffsets);
        check(checks, "deleteConsumerGroups", this::deleteGroups);
    }

    private void check(Checks checks, String name, Body body) {
        checks.check("admin, " + name, () -> {
            TopicPartition partition = new TopicPartition(site.topic(1), 0);
            site.produce(partition, 10);
            String id = Site.name("group");
            Object[] settings = {"group.id", id, "client.id", "smoke", "group.instance.id", "one"};
            try (Admin admin = site.admin();
                KafkaConsumer<String, String> member = site.consumer(settings)) {
                member.subscribe(List.of(partition.topic()));
                Site.take(member, 10);
                member.commitSync(Map.of(partition, new OffsetAndMetadata(7, "seven")));
                body.run(admin, new Group(id, partition, member));
            }
        });
    }

    /** The member leaves; a static one does not by itself. */
    private static void empty(Admin admin, Group group) throws Exception {
        group.member.unsubscribe();
        Site.get(admin.removeMembersFromConsumerGroup(group.id,
            new RemoveMembersFromConsumerGroupOptions()).all());
    }

    private void listGroups(Admin admin, Group group) throws Exception {
        GroupListing listed = find(admin, new ListGroupsOptions(), group);
        Checks.equal(GroupState.STABLE, listed.groupState().orElseThrow(), "state");
        Checks.equal(GroupType.CLASSIC, listed.type().orElseThrow(), "type");
        Checks.equal("consumer", listed.protocol(), "protocol");
        ListGroupsOptions classic = ListGroupsOptions.forConsumerGroups()
            .withTypes(Set.of(GroupType.CLASSIC)).inGroupStates(Set.of(GroupState.STABLE));
        find(admin, classic, group);
        ListGroupsOptions modern = new ListGroupsOptions().withTypes(Set.of(GroupType.CONSUMER));
        Checks.that(find(admin, modern, group) == null, "it is not a group of the new protocol");
        ListGroupsOptions idle = new ListGroupsOptions().inGroupStates(Set.of(GroupState.EMPTY));
        Checks.that(find(admin, idle, group) == null, "it is not listed as empty");
        empty(admin, group);
        Checks.that(find(admin, idle, group) != null, "it is listed as empty when its member has left");
    }

    private static GroupListing find(Admin admin, ListGroupsOptions options, Group group) throws Exception {
        return Site.get(admin.listGroups(options).all()).stream()
            .filter(each -> each.groupId().equals(group.id)).findFirst().orElse(null);
    }

    private void describe(Admin admin, Group group) throws Exception {
        ConsumerGroupDescription described = description(admin, group);
        Checks.equal(GroupState.STABLE, described.groupState(), "state");
        Checks.equal("range", described.partitionAssignor(), "assignor");
        Checks.that(described.authorizedOperations().contains(AclOperation.READ), "one may read by it");
        MemberDescription member = described.members().iterator().next();
        Checks.equal(Set.of(group.partition), member.assignment().topicPartitions(), "what its member has");
        Checks.equal("one", member.groupInstanceId().orElse(""), "instance id");
        Checks.equal("smoke", member.clientId(), "client id");
        Checks.that(member.host().contains("127.0.0.1"), "its host is this one: " + member.host());
        empty(admin, group);
        Checks.equal(GroupState.EMPTY, description(admin, group).groupState(), "state without members");
        Checks.raises(GroupIdNotFoundException.class,
            () -> Site.get(admin.describeConsumerGroups(List.of(Site.name("missing"))).all()));
    }

    private static ConsumerGroupDescription description(Admin admin, Group group) throws Exception {
        var options = new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true);
        return Site.get(admin.describeConsumerGroups(List.of(group.id), options).describedGroups().get(group.id));
    }

    private void describeClassic(Admin admin, Group group) throws Exception {
        var described = Site.get(admin.describeClassicGroups(List.of(group.id)).describedGroups().get(group.id));
        Checks.equal("consumer", described.protocol(), "protocol");
        Checks.equal("range", described.protocolData(), "assignor");
        Checks.equal(1, described.members().size(), "members");
    }

    private void listOffsets(Admin admin, Group group) throws Exception {
        OffsetAndMetadata committed = offsets(admin, group).get(group.partition);
        Checks.equal(7L, committed.offset(), "offset");
        Checks.equal("seven", committed.metadata(), "metadata");
        TopicPartition other = new TopicPartition(group.partition.topic(), 5);
        ListConsumerGroupOffsetsSpec one = new ListConsumerGroupOffsetsSpec().topicPartitions(List.of(other));
        var asked = admin.listConsumerGroupOffsets(Map.of(group.id, one, Site.name("missing"), new ListConsumerGroupOffsetsSpec()));
        Checks.that(Site.get(asked.partitionsToOffsetAndMetadata(group.id)).get(other) == null, "nothing is committed elsewhere");
        Checks.equal(2, Site.get(asked.all()).size(), "groups in one request");
    }

    private static Map<TopicPartition, OffsetAndMetadata> offsets(Admin admin, Group group) throws Exception {
        return Site.get(admin.listConsumerGroupOffsets(group.id).partitionsToOffsetAndMetadata());
    }

    private void alterOffsets(Admin admin, Group group) throws Exception {
        Checks.raises(UnknownMemberIdException.class,
            () -> Site.get(admin.alterConsumerGroupOffsets(group.id, group.offsets(3)).all()));
        empty(admin, group);
        Site.get(admin.alterConsumerGroupOffsets(group.id, group.offsets(3)).all());
        Checks.equal(3L, offsets(admin, group).get(group.partition).offset(), "offset");
        String fresh = Site.name("group");
        Site.get(admin.alterConsumerGroupOffsets(fresh, group.offsets(4)).all());
        Checks.equal(4L, Site.get(admin.listConsumerGroupOffsets(fresh).partitionsToOffsetAndMetadata())
            .get(group.partition).offset(), "offset of a group that was not there");
    }

    private void deleteOffsets(Admin admin, Group group) throws Exception {
        Set<TopicPartition> one = Set.of(group.partition);
        Checks.raises(GroupSubscribedToTopicException.class,
            () -> Site.get(admin.deleteConsumerGroupOffsets(group.id, one).all()));
        empty(admin, group);
        Site.get(admin.deleteConsumerGroupOffsets(group.id, one).all());
        Checks.equal(Map.of(), offsets(admin, group), "what is left");
        Checks.raises(GroupIdNotFoundException.class,
            () -> Site.get(admin.deleteConsumerGroupOffsets(Site.name("missing"), one).all()));
    }

    private void deleteGroups(Admin admin, Group group) throws Exception {
        Checks.raises(GroupNotEmptyException.class, () -> Site.get(admin.deleteConsumerGroups(List.of(group.id)).all()));
        empty(admin, group);
        Site.get(admin.deleteConsumerGroups(List.of(group.id)).all());
        Set<String> left = Site.get(admin.listGroups().all()).stream().map(GroupListing::groupId).collect(Collectors.toSet());
        Checks.that(!left.contains(group.id), "it is gone");
        Checks.raises(GroupIdNotFoundException.class, () -> Site.get(admin.deleteConsumerGroups(List.of(group.id)).all()));
    }
}
