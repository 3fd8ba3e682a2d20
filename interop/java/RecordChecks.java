import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.NoOffsetForPartitionException;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.record.TimestampType;

/** What is produced is what is consumed: codecs, idempotence, acks, headers, timestamps, offsets. */
final class RecordChecks {
    private static final String LONG_TEXT = "the same text again and again ".repeat(20);

    private final Site site;

    RecordChecks(Site site) {
        this.site = site;
    }

    void run(Checks checks) {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            checks.check("records, codec " + codec, () -> codec(codec));
        }
        for (String acks : List.of("0", "1", "all")) {
            checks.check("records, acks " + acks, () -> acks(acks));
        }
        checks.check("records, idempotent producer", this::idempotent);
        checks.check("records, headers, nulls and own timestamps", this::contents);
        checks.check("records, timestamps of the broker", this::appendTime);
        checks.check("records, topic made when it is first used", this::autoCreated);
        checks.check("records, too large for the topic", this::tooLarge);
        checks.check("records, topic with a bad name", this::badTopic);
        checks.check("records, seek, position, offsets by time", this::seek);
        checks.check("records, offset out of range", this::outOfRange);
        checks.check("records, pause and resume", this::pause);
    }

    private void codec(String codec) throws Exception {
        TopicPartition partition = new TopicPartition(site.topic(1), 0);
        List<String> sent = IntStream.range(0, 1000).mapToObj(i -> LONG_TEXT + i).toList();
        try (KafkaProducer<String, String> producer = site.producer("compression.type", codec, "linger.ms", "20")) {
            sent.forEach(value -> producer.send(new ProducerRecord<>(partition.topic(), value)));
            producer.flush();
        }
        Checks.equal(sent, site.values(partition, "read_uncommitted"), "what was consumed");
    }

    private void acks(String acks) throws Exception {
        TopicPartition partition = new TopicPartition(site.topic(1), 0);
        try (KafkaProducer<String, String> producer = site.producer("acks", acks, "enable.idempotence", "false")) {
            RecordMetadata metadata = Site.get(producer.send(new ProducerRecord<>(partition.topic(), "value")));
            Checks.equal(!acks.equals("0"), metadata.hasOffset(), "whether the offset is known");
        }
        try (KafkaConsumer<String, String> consumer = site.consumer()) {
            consumer.assign(List.of(partition));
            Checks.equal("value", Site.take(consumer, 1).get(0).value(), "value");
        }
    }

    private void idempotent() throws Exception {
        TopicPartition partition = new TopicPartition(site.topic(1), 0);
        Object[] settings = {
            "enable.idempotence", "true", "max.in.flight.requests.per.connection", "5", "batch.size", "200"
        };
        int count = 5000;
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<String, String> producer = site.producer(settings)) {
            for (int i = 0; i < count; i++) {
                sent.add(producer.send(new ProducerRecord<>(partition.topic(), String.valueOf(i))));
            }
            for (int i = 0; i < count; i++) {
                Checks.equal((long) i, Site.get(sent.get(i)).offset(), "offset of record " + i);
            }
        }
    }

    private void contents() throws Exception {
        String topic = site.topic(1);
        try (KafkaProducer<String, String> producer = site.producer()) {
            ProducerRecord<String, String> full = new ProducerRecord<>(topic, 0, 1_000_000L, "key", "value");
            full.headers().add("one", new byte[] {1, 2}).add("one", new byte[0]).add("none", null);
            Site.get(producer.send(full));
            Site.get(producer.send(new ProducerRecord<>(topic, 0, 2_000_000L, null, (String) null)));
            Site.get(producer.send(new ProducerRecord<>(topic, 0, 3_000_000L, "", "")));
        }
        try (KafkaConsumer<String, String> consumer = site.consumer()) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            List<ConsumerRecord<String, String>> seen = Site.take(consumer, 3);
            ConsumerRecord<String, String> full = seen.get(0);
            Checks.equal(1_000_000L, full.timestamp(), "timestamp");
            Checks.equal(TimestampType.CREATE_TIME, full.timestampType(), "timestamp type");
            Checks.equal(3, full.headers().toArray().length, "number of headers");
            Checks.equal(2, full.headers().headers("one").iterator().next().value().length, "length of a header");
            Checks.that(full.headers().lastHeader("none").value() == null, "a header without a value has none");
            Checks.that(seen.get(1).key() == null && seen.get(1).value() == null, "nulls stay nulls");
            Checks.that(seen.get(2).key().isEmpty() && seen.get(2).value().isEmpty(), "empty is not null");
        }
    }

    private void appendTime() throws Exception {
        String topic = site.topic(1, Map.of("message.timestamp.type", "LogAppendTime"));
        try (KafkaProducer<String, String> producer = site.producer()) {
            RecordMetadata metadata = Site.get(producer.send(new ProducerRecord<>(topic, 0, 1L, "key", "value")));
            try (KafkaConsumer<String, String> consumer = site.consumer()) {
                consumer.assign(List.of(new TopicPartition(topic, 0)));
                ConsumerRecord<String, String> seen = Site.take(consumer, 1).get(0);
                Checks.equal(TimestampType.LOG_APPEND_TIME, seen.timestampType(), "timestamp type");
                Checks.equal(metadata.timestamp(), seen.timestamp(), "timestamp");
                Checks.that(seen.timestamp() > 1_000_000_000_000L, "it is a time of this century");
            }
        }
    }

    private void autoCreated() throws Exception {
        try (KafkaProducer<String, String> producer = site.producer()) {
            RecordMetadata metadata = Site.get(producer.send(new ProducerRecord<>(Site.name("unseen"), "value")));
            Checks.equal(0L, metadata.offset(), "offset");
        }
    }

    private void tooLarge() throws Exception {
        String topic = site.topic(1, Map.of("max.message.bytes", "1000"));
        try (KafkaProducer<String, String> producer = site.producer()) {
            Checks.raises(RecordTooLargeException.class,
                () -> Site.get(producer.send(new ProducerRecord<>(topic, "x".repeat(2000)))));
            Checks.equal(0L, Site.get(producer.send(new ProducerRecord<>(topic, "fits"))).offset(), "offset");
        }
    }

    private void badTopic() {
        try (KafkaProducer<String, String> producer = site.producer("max.block.ms", "20000")) {
            Checks.raises(InvalidTopicException.class,
                () -> Site.get(producer.send(new ProducerRecord<>("no good name", "value"))));
        }
    }

    private void seek() throws Exception {
        TopicPartition partition = new TopicPartition(site.topic(1), 0);
        try (KafkaProducer<String, String> producer = site.producer()) {
            for (long i = 0; i < 10; i++) {
                Site.get(producer.send(new ProducerRecord<>(partition.topic(), 0, 1000 * i, "key", "value")));
            }
        }
        List<TopicPartition> one = List.of(partition);
        try (KafkaConsumer<String, String> consumer = site.consumer()) {
            consumer.assign(one);
            consumer.seek(partition, 7);
            Checks.equal(7L, Site.take(consumer, 3).get(0).offset(), "first offset after a seek");
            consumer.seekToBeginning(one);
            Checks.equal(0L, consumer.position(partition), "position at the beginning");
            consumer.seekToEnd(one);
            Checks.equal(10L, consumer.position(partition), "position at the end");
            Checks.equal(Map.of(partition, 0L), consumer.beginningOffsets(one), "beginning offsets");
            Checks.equal(Map.of(partition, 10L), consumer.endOffsets(one), "end offsets");
            OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(partition, 4500L)).get(partition);
            Checks.equal(5L, found.offset(), "first offset of 4500 ms and later");
            Checks.equal(5000L, found.timestamp(), "its timestamp");
            Checks.that(consumer.offsetsForTimes(Map.of(partition, 9001L)).get(partition) == null,
                "there is no record after the last");
            Checks.equal(1, consumer.partitionsFor(partition.topic()).size(), "partitions");
            Checks.that(consumer.listTopics().containsKey(partition.topic()), "the topic is listed");
        }
    }

    private void outOfRange() throws Exception {
        TopicPartition partition = new TopicPartition(site.topic(1), 0);
        site.produce(partition, 3);
        try (KafkaConsumer<String, String> consumer = site.consumer("auto.offset.reset", "none", "group.id", Site.name("group"))) {
            consumer.assign(List.of(partition));
            Checks.raises(NoOffsetForPartitionException.class, () -> consumer.poll(Duration.ofSeconds(20)));
            consumer.seek(partition, 100);
            OffsetOutOfRangeException error = Checks.raises(OffsetOutOfRangeException.class, () -> {
                for (int i = 0; i < 100; i++) {
                    consumer.poll(Duration.ofMillis(200));
                }
            });
            Checks.equal(Map.of(partition, 100L), error.offsetOutOfRangePartitions(), "what is out of range");
        }
    }

    private void pause() throws Exception {
        String topic = site.topic(2);
        TopicPartition paused = new TopicPartition(topic, 0);
        TopicPartition other = new TopicPartition(topic, 1);
        site.produce(paused, 5);
        site.produce(other, 5);
        try (KafkaConsumer<String, String> consumer = site.consumer()) {
            consumer.assign(List.of(paused, other));
            consumer.pause(List.of(paused));
            Site.take(consumer, 5).forEach(record -> Checks.equal(1, record.partition(), "partition"));
            consumer.resume(List.of(paused));
            Site.take(consumer, 5).forEach(record -> Checks.equal(0, record.partition(), "partition"));
        }
    }
}
