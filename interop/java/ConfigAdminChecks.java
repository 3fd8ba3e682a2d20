import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.AlterConfigsOptions;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConfigEntry.ConfigSource;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.ListConfigResourcesOptions;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** Settings of topics and of the broker, by the administrator's client. */
final class ConfigAdminChecks {
    private final Site site;

    ConfigAdminChecks(Site site) {
        this.site = site;
    }

    void run(Checks checks) {
        site.administer(checks, "describeConfigs of a topic", this::describeTopicConfigs);
        site.administer(checks, "describeConfigs of the broker", this::describeBrokerConfigs);
        site.administer(checks, "incrementalAlterConfigs", this::alterConfigs);
        site.administer(checks, "incrementalAlterConfigs, refusals", this::refusedConfigs);
        site.administer(checks, "listConfigResources", this::listConfigResources);
    }

    private static ConfigResource resource(String topic) {
        return new ConfigResource(ConfigResource.Type.TOPIC, topic);
    }

    private static ConfigEntry entry(Admin admin, ConfigResource resource, String name) throws Exception {
        DescribeConfigsOptions options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        Config described = Site.get(admin.describeConfigs(List.of(resource), options).values().get(resource));
        return described.get(name);
    }

    private void describeTopicConfigs(Admin admin) throws Exception {
        ConfigResource topic = resource(site.topic(1, Map.of("retention.ms", "12345")));
        ConfigEntry set = entry(admin, topic, "retention.ms");
        Checks.equal("12345", set.value(), "value");
        Checks.equal(ConfigSource.DYNAMIC_TOPIC_CONFIG, set.source(), "source");
        Checks.equal(ConfigEntry.ConfigType.LONG, set.type(), "type");
        Checks.that(set.documentation() != null && !set.documentation().isBlank(), "it is documented");
        Checks.equal("12345", set.synonyms().get(0).value(), "first synonym");
        ConfigEntry unset = entry(admin, topic, "cleanup.policy");
        Checks.equal("delete", unset.value(), "default");
        Checks.that(unset.isDefault(), "it is a default");
        ConfigResource missing = resource(Site.name("missing"));
        Checks.raises(UnknownTopicOrPartitionException.class, () -> entry(admin, missing, "retention.ms"));
    }

    private void describeBrokerConfigs(Admin admin) throws Exception {
        Node node = Site.get(admin.describeCluster().nodes()).iterator().next();
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, node.idString());
        for (String name : List.of("log.retention.ms", "log.segment.bytes", "message.max.bytes", "auto.create.topics.enable",
            "num.partitions", "advertised.listeners", "group.max.session.timeout.ms")) {
            Checks.that(entry(admin, broker, name) != null, "the broker describes " + name);
        }
    }

    private static void alter(Admin admin, ConfigResource resource, OpType type, String name, String value)
        throws Exception {
        alter(admin, resource, type, name, value, false);
    }

    private static void alter(
        Admin admin, ConfigResource resource, OpType type, String name, String value, boolean validateOnly)
        throws Exception {
        Collection<AlterConfigOp> operations = List.of(new AlterConfigOp(new ConfigEntry(name, value), type));
        AlterConfigsOptions options = new AlterConfigsOptions().validateOnly(validateOnly);
        Site.get(admin.incrementalAlterConfigs(Map.of(resource, operations), options).all());
    }

    private void alterConfigs(Admin admin) throws Exception {
        ConfigResource topic = resource(site.topic(1));
        alter(admin, topic, OpType.SET, "retention.ms", "777", true);
        Checks.that(entry(admin, topic, "retention.ms").isDefault(), "validation changes nothing");
        alter(admin, topic, OpType.SET, "retention.ms", "777");
        Checks.equal("777", entry(admin, topic, "retention.ms").value(), "value that was set");
        alter(admin, topic, OpType.DELETE, "retention.ms", "");
        Checks.that(entry(admin, topic, "retention.ms").isDefault(), "what was deleted is a default again");
        alter(admin, topic, OpType.APPEND, "cleanup.policy", "compact");
        Checks.equal(Set.of("delete", "compact"), policies(admin, topic), "policies after one was appended");
        alter(admin, topic, OpType.SUBTRACT, "cleanup.policy", "delete");
        Checks.equal(Set.of("compact"), policies(admin, topic), "policies after one was taken away");
    }

    private static Set<String> policies(Admin admin, ConfigResource topic) throws Exception {
        return Set.of(entry(admin, topic, "cleanup.policy").value().split(","));
    }

    private void refusedConfigs(Admin admin) throws Exception {
        ConfigResource topic = resource(site.topic(1));
        Checks.raises(InvalidConfigurationException.class, () -> alter(admin, topic, OpType.SET, "no.such.setting", "1"));
        Checks.raises(InvalidConfigurationException.class, () -> alter(admin, topic, OpType.SET, "segment.bytes", "many"));
        Checks.raises(InvalidConfigurationException.class, () -> alter(admin, topic, OpType.APPEND, "retention.ms", "1"));
        ConfigResource missing = resource(Site.name("missing"));
        Checks.raises(UnknownTopicOrPartitionException.class, () -> alter(admin, missing, OpType.SET, "retention.ms", "1"));
    }

    private void listConfigResources(Admin admin) throws Exception {
        ConfigResource topic = resource(site.topic(1));
        Set<ConfigResource.Type> topics = Set.of(ConfigResource.Type.TOPIC);
        Checks.that(Site.get(admin.listConfigResources(topics, new ListConfigResourcesOptions()).all()).contains(topic),
            "the topic is listed");
        Set<ConfigResource.Type> metrics = Set.of(ConfigResource.Type.CLIENT_METRICS);
        Checks.equal(0, Site.get(admin.listConfigResources(metrics, new ListConfigResourcesOptions()).all()).size(),
            "subscriptions to metrics of clients");
    }
}
