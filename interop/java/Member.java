import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.WakeupException;

/**
 * A member of a group in a thread of its own: it notes every record in a queue that members share, and commits
 * after each poll, so that a record is noted once, whatever the group does.
 */
final class Member implements AutoCloseable {
    /** What it lost at any time. */
    final Set<TopicPartition> revoked = ConcurrentHashMap.newKeySet();

    private final KafkaConsumer<String, String> consumer;
    private final Queue<String> noted;
    private final Thread thread;
    private volatile Set<TopicPartition> assigned = Set.of();
    private volatile String id = "";
    private volatile Throwable failure;

    Member(KafkaConsumer<String, String> consumer, String topic, Queue<String> noted) {
        this.consumer = consumer;
        this.noted = noted;
        consumer.subscribe(List.of(topic), new Listener());
        thread = new Thread(this::run, "member");
        thread.setDaemon(true);
        thread.start();
    }

    static Queue<String> notes() {
        return new ConcurrentLinkedQueue<>();
    }

    /** What it has now. Fails when the member has failed. */
    Set<TopicPartition> assigned() {
        if (failure != null) {
            throw new AssertionError("a member failed: " + failure, failure);
        }
        return assigned;
    }

    /** The id that the group gave it; "" before its first assignment. */
    String id() {
        return id;
    }

    /** Leaves the group, unless it is a static member. */
    @Override
    public void close() {
        consumer.wakeup();
        try {
            thread.join();
        } catch (InterruptedException error) {
            throw new AssertionError("nobody interrupts this program", error);
        }
    }

    private void run() {
        try (consumer) {
            while (true) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> noted.add(record.value()));
                try {
                    consumer.commitSync();
                } catch (RebalanceInProgressException later) {
                    // the next poll carries on with it; what is lost by it is committed by the listener
                }
            }
        } catch (WakeupException stopped) {
            // by close()
        } catch (RuntimeException error) {
            failure = error;
        }
    }

    private final class Listener implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            assigned = Set.copyOf(consumer.assignment());
            id = consumer.groupMetadata().memberId();
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            revoked.addAll(partitions);
            consumer.commitSync();
        }
    }
}
