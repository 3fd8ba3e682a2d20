import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;

/** Transactions as a producer and a consumer see them. */
final class TransactionChecks {
    private final Site site;

    TransactionChecks(Site site) {
        this.site = site;
    }

    void run(Checks checks) {
        checks.check("transactions, commit and abort", this::commitAndAbort);
        checks.check("transactions, open ones hold back read_committed", this::lastStableOffset);
        checks.check("transactions, consume and produce with offsets", this::offsets);
        checks.check("transactions, offsets of an aborted one are not committed", this::abortedOffsets);
        checks.check("transactions, a zombie is fenced", this::zombie);
        checks.check("transactions, an open one is aborted by its successor", this::takenOver);
        checks.check("transactions, timeout of a producer that went away", this::timeout);
        checks.check("transactions, timeout above the limit", this::longTimeout);
    }

    private KafkaProducer<String, String> producer(String id) {
        KafkaProducer<String, String> producer = site.producer("transactional.id", id);
        producer.initTransactions();
        return producer;
    }

    private void commitAndAbort() throws Exception {
        String topic = site.topic(2);
        try (KafkaProducer<String, String> producer = producer(Site.name("producer"))) {
            for (String outcome : List.of("committed", "aborted", "committed again", "aborted again")) {
                producer.beginTransaction();
                for (int partition = 0; partition < 2; partition++) {
                    Site.get(producer.send(new ProducerRecord<>(topic, partition, "key", outcome)));
                }
                if (outcome.startsWith("committed")) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
        }
        for (int index = 0; index < 2; index++) {
            TopicPartition partition = new TopicPartition(topic, index);
            Checks.equal(List.of("committed", "committed again"), site.values(partition, "read_committed"), "committed");
            Checks.equal(4, site.values(partition, "read_uncommitted").size(), "number of all records");
        }
    }

    private void lastStableOffset() throws Exception {
        TopicPartition partition = new TopicPartition(site.topic(1), 0);
        List<TopicPartition> one = List.of(partition);
        try (KafkaProducer<String, String> producer = producer(Site.name("producer"));
            KafkaConsumer<String, String> committed = site.consumer("isolation.level", "read_committed");
            KafkaConsumer<String, String> all = site.consumer("isolation.level", "read_uncommitted")) {
            committed.assign(one);
            all.assign(one);
            producer.beginTransaction();
            Site.get(producer.send(new ProducerRecord<>(partition.topic(), "value")));
            site.produce(partition, 1); // not in the transaction, but behind it
            Site.take(all, 2);
            Checks.equal(2L, all.endOffsets(one).get(partition), "high watermark");
            Checks.equal(0L, committed.endOffsets(one).get(partition), "last stable offset");
            producer.commitTransaction();
            Site.take(committed, 2);
            Checks.equal(3L, committed.endOffsets(one).get(partition), "last stable offset, with the marker");
        }
    }

    private void offsets() throws Exception {
        TopicPartition from = new TopicPartition(site.topic(1), 0);
        TopicPartition into = new TopicPartition(site.topic(1), 0);
        String group = Site.name("group");
        site.produce(from, 100);
        try (KafkaProducer<String, String> producer = producer(Site.name("producer"));
            KafkaConsumer<String, String> consumer = site.consumer("group.id", group, "isolation.level", "read_committed")) {
            consumer.subscribe(List.of(from.topic()));
            for (ConsumerRecord<String, String> record : Site.take(consumer, 100)) {
                if (record.offset() % 10 == 0) {
                    producer.beginTransaction();
                }
                producer.send(new ProducerRecord<>(into.topic(), record.value()));
                if (record.offset() % 10 == 9) {
                    producer.sendOffsetsToTransaction(
                        Map.of(from, new OffsetAndMetadata(record.offset() + 1, "by transaction")), consumer.groupMetadata());
                    producer.commitTransaction();
                }
            }
            OffsetAndMetadata committed = consumer.committed(Set.of(from)).get(from);
            Checks.equal(100L, committed.offset(), "committed offset");
            Checks.equal("by transaction", committed.metadata(), "its metadata");
        }
        List<String> expected = IntStream.range(0, 100).mapToObj(String::valueOf).toList();
        Checks.equal(expected, site.values(into, "read_committed"), "what was produced");
    }

    private void abortedOffsets() throws Exception {
        TopicPartition from = new TopicPartition(site.topic(1), 0);
        site.produce(from, 10);
        try (KafkaProducer<String, String> producer = producer(Site.name("producer"));
            KafkaConsumer<String, String> consumer = site.consumer("group.id", Site.name("group"))) {
            consumer.subscribe(List.of(from.topic()));
            Site.take(consumer, 10);
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(Map.of(from, new OffsetAndMetadata(10)), consumer.groupMetadata());
            producer.abortTransaction();
            Checks.that(consumer.committed(Set.of(from)).get(from) == null, "nothing is committed");
        }
    }

    private void zombie() throws Exception {
        TopicPartition partition = new TopicPartition(site.topic(1), 0);
        String id = Site.name("producer");
        try (KafkaProducer<String, String> zombie = producer(id)) {
            zombie.beginTransaction();
            Site.get(zombie.send(new ProducerRecord<>(partition.topic(), "of the zombie")));
            try (KafkaProducer<String, String> successor = producer(id)) {
                successor.beginTransaction();
                Site.get(successor.send(new ProducerRecord<>(partition.topic(), "of its successor")));
                Checks.raises(ProducerFencedException.class, zombie::commitTransaction);
                successor.commitTransaction();
            }
        }
        Checks.equal(List.of("of its successor"), site.values(partition, "read_committed"), "committed");
    }

    private void takenOver() throws Exception {
        TopicPartition partition = new TopicPartition(site.topic(1), 0);
        String id = Site.name("producer");
        KafkaProducer<String, String> first = producer(id);
        first.beginTransaction();
        Site.get(first.send(new ProducerRecord<>(partition.topic(), "never committed")));
        first.close(Duration.ZERO); // it neither commits nor aborts
        try (KafkaProducer<String, String> second = producer(id)) {
            second.beginTransaction();
            Site.get(second.send(new ProducerRecord<>(partition.topic(), "committed")));
            second.commitTransaction();
        }
        Checks.equal(List.of("committed"), site.values(partition, "read_committed"), "committed");
    }

    private void timeout() throws Exception {
        TopicPartition partition = new TopicPartition(site.topic(1), 0);
        Object[] settings = {"transactional.id", Site.name("producer"), "transaction.timeout.ms", "2000"};
        try (KafkaProducer<String, String> producer = site.producer(settings);
            KafkaConsumer<String, String> consumer = site.consumer("isolation.level", "read_committed")) {
            producer.initTransactions();
            producer.beginTransaction();
            Site.get(producer.send(new ProducerRecord<>(partition.topic(), "left open")));
            site.produce(partition, 1);
            consumer.assign(List.of(partition));
            Checks.equal("0", Site.take(consumer, 1).get(0).value(), "what comes after it");
            Checks.raises(KafkaException.class, producer::commitTransaction);
        }
    }

    private void longTimeout() {
        Object[] settings = {"transactional.id", Site.name("producer"), "transaction.timeout.ms", "2000000000"};
        try (KafkaProducer<String, String> producer = site.producer(settings)) {
            Throwable error = Checks.raises(KafkaException.class, producer::initTransactions);
            Checks.that(error.getMessage().contains("transaction.max.timeout.ms"), "the client knows why: " + error);
        }
    }
}
