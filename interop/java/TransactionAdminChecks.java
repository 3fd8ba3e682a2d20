import java.util.Collection;
import java.util.List;
import java.util.Set;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TransactionalIdNotFoundException;

/** Producers and their transactions, by the administrator's client. */
final class TransactionAdminChecks {
    private final Site site;

    TransactionAdminChecks(Site site) {
        this.site = site;
    }

    /** A check that has an administrator and an open transaction with one record. */
    private interface Body {
        void run(Admin admin, Open open) throws Exception;
    }

    /** An open transaction, the only partition that it has written to, and its producer. */
    private record Open(String id, TopicPartition partition, KafkaProducer<String, String> producer) {}

    void run(Checks checks) {
        check(checks, "describeProducers", this::describeProducers);
        check(checks, "listTransactions", this::listTransactions);
        check(checks, "describeTransactions", this::describeTransactions);
        check(checks, "fenceProducers", this::fenceProducers);
        check(checks, "abortTransaction", this::abortTransaction);
        check(checks, "forceTerminateTransaction", this::forceTerminate);
    }

    private void check(Checks checks, String name, Body body) {
        checks.check("admin, " + name, () -> {
            TopicPartition partition = new TopicPartition(site.topic(1), 0);
            String id = Site.name("producer");
            try (Admin admin = site.admin();
                KafkaProducer<String, String> producer = site.producer("transactional.id", id)) {
                producer.initTransactions();
                producer.beginTransaction();
                Site.get(producer.send(new ProducerRecord<>(partition.topic(), "value")));
                body.run(admin, new Open(id, partition, producer));
            }
        });
    }

    private static ProducerState only(Admin admin, TopicPartition partition) throws Exception {
        Collection<ProducerState> states =
            Site.get(admin.describeProducers(List.of(partition)).partitionResult(partition)).activeProducers();
        Checks.equal(1, states.size(), "producers");
        return states.iterator().next();
    }

    private static TransactionDescription description(Admin admin, String id) throws Exception {
        return Site.get(admin.describeTransactions(List.of(id)).description(id));
    }

    private void describeProducers(Admin admin, Open open) throws Exception {
        ProducerState state = only(admin, open.partition);
        Checks.equal(0L, state.currentTransactionStartOffset().orElse(-1), "first offset of its transaction");
        Checks.equal(0, state.lastSequence(), "last sequence");
        open.producer.commitTransaction();
        Checks.that(only(admin, open.partition).currentTransactionStartOffset().isEmpty(), "it has none open after a commit");
    }

    private void listTransactions(Admin admin, Open open) throws Exception {
        Checks.equal(TransactionState.ONGOING, find(admin, new ListTransactionsOptions(), open).state(), "state");
        long producerId = only(admin, open.partition).producerId();
        ListTransactionsOptions mine = new ListTransactionsOptions().filterProducerIds(Set.of(producerId));
        Checks.equal(producerId, find(admin, mine, open).producerId(), "producer id");
        ListTransactionsOptions done = new ListTransactionsOptions().filterStates(Set.of(TransactionState.COMPLETE_COMMIT));
        Checks.that(find(admin, done, open) == null, "it is not listed as complete");
        ListTransactionsOptions slow = new ListTransactionsOptions().filterOnDuration(3_600_000);
        Checks.that(find(admin, slow, open) == null, "it has not been open for an hour");
    }

    private static TransactionListing find(Admin admin, ListTransactionsOptions options, Open open) throws Exception {
        return Site.get(admin.listTransactions(options).all()).stream()
            .filter(each -> each.transactionalId().equals(open.id)).findFirst().orElse(null);
    }

    private void describeTransactions(Admin admin, Open open) throws Exception {
        TransactionDescription described = description(admin, open.id);
        Checks.equal(TransactionState.ONGOING, described.state(), "state");
        Checks.equal(Set.of(open.partition), described.topicPartitions(), "partitions");
        Checks.equal(60_000L, described.transactionTimeoutMs(), "timeout");
        Checks.that(described.transactionStartTimeMs().orElse(0) > 1_000_000_000_000L, "it has begun in this century");
        open.producer.commitTransaction();
        Site.eventually("the transaction is complete",
            () -> description(admin, open.id).state() == TransactionState.COMPLETE_COMMIT);
        Checks.raises(TransactionalIdNotFoundException.class, () -> description(admin, Site.name("missing")));
    }

    private void fenceProducers(Admin admin, Open open) throws Exception {
        var fenced = admin.fenceProducers(List.of(open.id));
        Site.get(fenced.all());
        Checks.that(Site.get(fenced.epochId(open.id)) > 0, "the epoch has grown");
        Checks.raises(ProducerFencedException.class, open.producer::commitTransaction);
        Checks.equal(List.of(), site.values(open.partition, "read_committed"), "what was committed");
    }

    /** What an operator does about a hanging transaction: the marker is written past the coordinator. */
    private void abortTransaction(Admin admin, Open open) throws Exception {
        ProducerState state = only(admin, open.partition);
        Site.get(admin.abortTransaction(new AbortTransactionSpec(
            open.partition, state.producerId(), (short) state.producerEpoch(), state.coordinatorEpoch().orElse(0))).all());
        Checks.that(only(admin, open.partition).currentTransactionStartOffset().isEmpty(), "it has none open");
        site.produce(open.partition, 1);
        Checks.equal(List.of("0"), site.values(open.partition, "read_committed"), "what was committed");
    }

    private void forceTerminate(Admin admin, Open open) throws Exception {
        Site.get(admin.forceTerminateTransaction(open.id).result());
        Checks.raises(KafkaException.class, open.producer::commitTransaction);
        Checks.equal(List.of(), site.values(open.partition, "read_committed"), "what was committed");
    }
}
