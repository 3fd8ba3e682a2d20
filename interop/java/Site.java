import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The broker under test: clients of it, names that nobody else has, and the few things that every check does. */
final class Site {
    private static final Duration PATIENCE = Duration.ofSeconds(60);
    private static final Duration POLL = Duration.ofMillis(200);

    final String bootstrapServers;

    Site(String bootstrapServers) {
        this.bootstrapServers = bootstrapServers;
    }

    /** A name for a topic, a group or a producer, which is not in use. */
    static String name(String what) {
        return what + "-" + UUID.randomUUID();
    }

    /** The result of a future, within the patience of this program. */
    static <T> T get(Future<T> future) throws Exception {
        return future.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
    }

    Admin admin() {
        return Admin.create(settings());
    }

    /** What an administrator does. */
    interface Administration {
        void run(Admin admin) throws Exception;
    }

    /** A check that has an administrator's client. */
    void administer(Checks checks, String name, Administration body) {
        checks.check("admin, " + name, () -> {
            try (Admin admin = admin()) {
                body.run(admin);
            }
        });
    }

    /** Settings are pairs: name, value, name, value... */
    KafkaProducer<String, String> producer(Object... pairs) {
        return new KafkaProducer<>(settings(pairs), new StringSerializer(), new StringSerializer());
    }

    /** It begins at the earliest record, and commits only what it is told to, unless the pairs say otherwise. */
    KafkaConsumer<String, String> consumer(Object... pairs) {
        Map<String, Object> settings = settings("auto.offset.reset", "earliest", "enable.auto.commit", "false");
        settings.putAll(settings(pairs));
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private Map<String, Object> settings(Object... pairs) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrapServers);
        for (int i = 0; i < pairs.length; i += 2) {
            settings.put((String) pairs[i], pairs[i + 1]);
        }
        return settings;
    }

    /** A new topic. */
    String topic(int partitions, Map<String, String> configs) throws Exception {
        String topic = name("smoke");
        try (Admin admin = admin()) {
            get(admin.createTopics(List.of(new NewTopic(topic, partitions, (short) -1).configs(configs))).all());
        }
        return topic;
    }

    String topic(int partitions) throws Exception {
        return topic(partitions, Map.of());
    }

    /** Produces values 0 up to {@code count}, exclusive, each with itself as its key, into one partition. */
    void produce(TopicPartition into, int count) throws Exception {
        try (KafkaProducer<String, String> producer = producer()) {
            List<Future<?>> sent = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                String text = String.valueOf(i);
                sent.add(producer.send(new ProducerRecord<>(into.topic(), into.partition(), text, text)));
            }
            for (Future<?> each : sent) {
                get(each);
            }
        }
    }

    /** Polls until there are {@code count} records; fails when they do not come, or more do. */
    static List<ConsumerRecord<String, String>> take(KafkaConsumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> taken = new ArrayList<>();
        eventually(count + " records", () -> {
            consumer.poll(POLL).forEach(taken::add);
            return taken.size() >= count;
        });
        Checks.equal(count, taken.size(), "number of records");
        return taken;
    }

    /** The values of a partition from its first offset to its end, as this isolation level shows it. */
    List<String> values(TopicPartition partition, String isolation) {
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer("isolation.level", isolation)) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            eventually("the end of " + partition, () -> {
                consumer.poll(POLL).forEach(record -> values.add(record.value()));
                return consumer.position(partition) >= end;
            });
        }
        return values;
    }

    /** What may have to be waited for. */
    interface Condition {
        boolean holds() throws Exception;
    }

    /** Tries until the condition holds; it should take its time by itself, by polling say. */
    static void eventually(String what, Condition condition) {
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        try {
            while (!condition.holds()) {
                if (System.nanoTime() > deadline) {
                    throw new AssertionError("not within " + PATIENCE.toSeconds() + " s: " + what);
                }
                Thread.onSpinWait();
            }
        } catch (RuntimeException error) {
            throw error;
        } catch (Exception error) {
            throw new AssertionError(what + ": " + error, error);
        }
    }
}
