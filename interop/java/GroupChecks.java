import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Queue;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.InvalidSessionTimeoutException;

/** Consumer groups: members come and go, and every record is consumed once. */
final class GroupChecks {
    private static final int PARTITIONS = 6;
    private static final int RECORDS = 50; // a partition, a round

    private final Site site;

    GroupChecks(Site site) {
        this.site = site;
    }

    void run(Checks checks) {
        for (String assignor : List.of("Range", "RoundRobin", "Sticky", "CooperativeSticky")) {
            checks.check("groups, rebalances with " + assignor, () -> rebalances(assignor));
        }
        for (String assignor : List.of("uniform", "range")) {
            checks.check("groups, rebalances by the broker, " + assignor, () -> rebalancesByBroker(assignor));
        }
        checks.check("groups, static member comes back", this::staticMember);
        checks.check("groups, second static member of one name fences the first", this::fenced);
        checks.check("groups, static member removed by an administrator", this::removed);
        checks.check("groups, new partitions are assigned", this::newPartitions);
        checks.check("groups, commits of a standalone consumer", this::standalone);
        checks.check("groups, commit of a member that was replaced", this::staleCommit);
        checks.check("groups, session timeout out of bounds", this::sessionTimeout);
    }

    private Member member(String group, String topic, Queue<String> notes, Object... pairs) {
        List<Object> all = new ArrayList<>(List.of("group.id", group));
        if (!List.of(pairs).contains("group.protocol")) {
            all.addAll(List.of("heartbeat.interval.ms", "300")); // rebalances are noticed by heartbeats
        }
        all.addAll(List.of(pairs));
        return new Member(site.consumer(all.toArray()), topic, notes);
    }

    private void rebalances(String assignor) throws Exception {
        boolean cooperative = assignor.startsWith("Cooperative");
        rebalances(cooperative, "partition.assignment.strategy",
            "org.apache.kafka.clients.consumer." + assignor + "Assignor");
    }

    /** The protocol of KIP-848. */
    private void rebalancesByBroker(String assignor) throws Exception {
        rebalances(true, "group.protocol", "consumer", "group.remote.assignor", assignor);
    }

    private void rebalances(boolean cooperative, Object... strategy) throws Exception {
        String topic = site.topic(PARTITIONS);
        String group = Site.name("group");
        Queue<String> notes = Member.notes();
        try (Member first = member(group, topic, notes, strategy)) {
            until("the first member has all partitions", () -> first.assigned().size() == PARTITIONS);
            round(topic, 1, notes);
            try (Member second = member(group, topic, notes, strategy)) {
                until("both have half of them",
                    () -> first.assigned().size() == PARTITIONS / 2 && second.assigned().size() == PARTITIONS / 2);
                Set<TopicPartition> all = new HashSet<>(first.assigned());
                all.addAll(second.assigned());
                Checks.equal(PARTITIONS, all.size(), "partitions that somebody has");
                if (cooperative) {
                    Checks.equal(second.assigned(), first.revoked, "what the first lost");
                }
                round(topic, 2, notes);
            }
            until("the first has them again", () -> first.assigned().size() == PARTITIONS);
            round(topic, 3, notes);
        }
        Checks.equal(3 * PARTITIONS * RECORDS, notes.size(), "records that were noted");
    }

    /** Produces into every partition, and waits until that many records have been noted in all. */
    private void round(String topic, int number, Queue<String> notes) throws Exception {
        for (int partition = 0; partition < PARTITIONS; partition++) {
            site.produce(new TopicPartition(topic, partition), RECORDS);
        }
        until("records of round " + number, () -> notes.size() >= number * PARTITIONS * RECORDS);
    }

    private void staticMember() throws Exception {
        String topic = site.topic(PARTITIONS);
        String group = Site.name("group");
        Queue<String> notes = Member.notes();
        Set<TopicPartition> before;
        try (Member first = member(group, topic, notes, "group.instance.id", "one")) {
            try (Member second = member(group, topic, notes, "group.instance.id", "two")) {
                until("both have half of the partitions",
                    () -> first.assigned().size() == PARTITIONS / 2 && second.assigned().size() == PARTITIONS / 2);
                before = second.assigned();
            }
            first.revoked.clear();
            try (Member again = member(group, topic, notes, "group.instance.id", "two")) {
                until("the second is back", () -> !again.assigned().isEmpty());
                Checks.equal(before, again.assigned(), "what it has");
                Checks.equal(Set.of(), first.revoked, "what the first lost by that");
            }
        }
    }

    private void fenced() throws Exception {
        String topic = site.topic(1);
        String group = Site.name("group");
        Object[] settings = {
            "group.id", group, "group.instance.id", "one", "heartbeat.interval.ms", "300"
        };
        try (KafkaConsumer<String, String> first = site.consumer(settings)) {
            first.subscribe(List.of(topic));
            until("the first has its partition", () -> {
                first.poll(Duration.ofMillis(200));
                return first.assignment().size() == 1;
            });
            try (Member second = member(group, topic, Member.notes(), "group.instance.id", "one")) {
                until("the second has it", () -> second.assigned().size() == 1);
                Checks.raises(FencedInstanceIdException.class, () -> {
                    for (int i = 0; i < 100; i++) {
                        first.poll(Duration.ofMillis(200));
                    }
                });
            }
        }
    }

    private void removed() throws Exception {
        String topic = site.topic(PARTITIONS);
        String group = Site.name("group");
        Queue<String> notes = Member.notes();
        try (Admin admin = site.admin();
            Member first = member(group, topic, notes, "group.instance.id", "one")) {
            try (Member second = member(group, topic, notes, "group.instance.id", "two")) {
                until("both have half of the partitions",
                    () -> first.assigned().size() == PARTITIONS / 2 && second.assigned().size() == PARTITIONS / 2);
            }
            Site.get(admin.removeMembersFromConsumerGroup(group,
                new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("two")))).all());
            until("the first has all partitions", () -> first.assigned().size() == PARTITIONS);
        }
    }

    private void newPartitions() throws Exception {
        String topic = site.topic(1);
        Queue<String> notes = Member.notes();
        try (Admin admin = site.admin();
            Member member = member(Site.name("group"), topic, notes, "metadata.max.age.ms", "500")) {
            until("it has one partition", () -> member.assigned().size() == 1);
            Site.get(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all());
            until("it has three", () -> member.assigned().size() == 3);
        }
    }

    private void standalone() throws Exception {
        TopicPartition partition = new TopicPartition(site.topic(1), 0);
        site.produce(partition, 3);
        Object[] settings = {"group.id", Site.name("group")};
        try (KafkaConsumer<String, String> consumer = site.consumer(settings)) {
            consumer.assign(List.of(partition));
            consumer.commitSync(Map.of(partition, new OffsetAndMetadata(2, "two of three")));
        }
        try (KafkaConsumer<String, String> consumer = site.consumer(settings)) {
            consumer.assign(List.of(partition));
            OffsetAndMetadata committed = consumer.committed(Set.of(partition)).get(partition);
            Checks.equal("two of three", committed.metadata(), "metadata");
            Checks.equal(2L, Site.take(consumer, 1).get(0).offset(), "where it goes on");
        }
    }

    @SuppressWarnings("removal") // nothing else makes the metadata of a generation that is over
    private void staleCommit() throws Exception {
        TopicPartition partition = new TopicPartition(site.topic(1), 0);
        String group = Site.name("group");
        try (Member member = member(group, partition.topic(), Member.notes());
            KafkaConsumer<String, String> stranger = site.consumer("group.id", group);
            KafkaProducer<String, String> producer = site.producer("transactional.id", Site.name("producer"))) {
            until("it has the partition", () -> member.assigned().size() == 1);
            stranger.assign(List.of(partition));
            Map<TopicPartition, OffsetAndMetadata> offsets = Map.of(partition, new OffsetAndMetadata(1));
            Checks.raises(CommitFailedException.class, () -> stranger.commitSync(offsets));
            producer.initTransactions();
            producer.beginTransaction();
            ConsumerGroupMetadata old =
                new ConsumerGroupMetadata(group, 999, member.id(), Optional.empty());
            Checks.raises(CommitFailedException.class, () -> {
                producer.sendOffsetsToTransaction(offsets, old);
                producer.commitTransaction();
            });
            producer.abortTransaction();
        }
    }

    private void sessionTimeout() throws Exception {
        Object[] settings = {"group.id", Site.name("group"), "session.timeout.ms", "100", "heartbeat.interval.ms", "50"};
        try (KafkaConsumer<String, String> consumer = site.consumer(settings)) {
            consumer.subscribe(List.of(site.topic(1)));
            Checks.raises(InvalidSessionTimeoutException.class, () -> {
                for (int i = 0; i < 100; i++) {
                    consumer.poll(Duration.ofMillis(200));
                }
            });
        }
    }

    /** As {@link Site#eventually}, of what other threads do. */
    private static void until(String what, Site.Condition condition) {
        Site.eventually(what, () -> {
            if (condition.holds()) {
                return true;
            }
            Thread.sleep(20);
            return false;
        });
    }
}
