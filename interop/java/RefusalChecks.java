import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.serialization.StringDeserializer;

/** What this broker does not have is refused at once, by name; clients do not hang. */
final class RefusalChecks {
    private final Site site;

    RefusalChecks(Site site) {
        this.site = site;
    }

    /** Something that the administrator's client is asked to do. */
    private interface Asked {
        Future<?> of(Admin admin);
    }

    void run(Checks checks) {
        refused(checks, "alterClientQuotas", admin -> admin.alterClientQuotas(List.of(quota())).all());
        refused(checks, "createDelegationToken", admin -> admin.createDelegationToken().delegationToken());
        refused(checks, "describeDelegationToken", admin -> admin.describeDelegationToken().delegationTokens());
        refused(checks, "unregisterBroker", admin -> admin.unregisterBroker(17).all());
        refused(checks, "describeShareGroups", admin -> admin.describeShareGroups(List.of("any")).all());
        refused(checks, "describeStreamsGroups", admin -> admin.describeStreamsGroups(List.of("any")).all());
        checks.check("unsupported, share consumer", this::shareConsumer);
    }

    private static ClientQuotaAlteration quota() {
        ClientQuotaEntity everybody = new ClientQuotaEntity(Collections.singletonMap(ClientQuotaEntity.USER, null));
        return new ClientQuotaAlteration(everybody, List.of(new ClientQuotaAlteration.Op("producer_byte_rate", 1e6)));
    }

    private void refused(Checks checks, String name, Asked asked) {
        checks.check("unsupported, " + name, () -> {
            try (Admin admin = site.admin()) {
                Checks.raises(UnsupportedVersionException.class, () -> Site.get(asked.of(admin)));
            }
        });
    }

    private void shareConsumer() throws Exception {
        String topic = site.topic(1);
        Map<String, Object> settings =
            Map.of("bootstrap.servers", site.bootstrapServers, "group.id", Site.name("group"));
        try (KafkaShareConsumer<String, String> consumer =
            new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            Checks.raises(UnsupportedVersionException.class, () -> poll(() -> consumer.poll(Duration.ofMillis(200))));
        }
    }

    private static void poll(Checks.Body once) throws Exception {
        for (int i = 0; i < 100; i++) {
            once.run();
        }
    }
}
