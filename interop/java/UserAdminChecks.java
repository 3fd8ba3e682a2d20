import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UserScramCredentialAlteration;
import org.apache.kafka.clients.admin.UserScramCredentialDeletion;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.common.errors.ResourceNotFoundException;
import org.apache.kafka.common.errors.UnacceptableCredentialException;

/** Users, by the administrator's client, of a broker that has none. */
final class UserAdminChecks {
    private final Site site;

    UserAdminChecks(Site site) {
        this.site = site;
    }

    void run(Checks checks) {
        site.administer(checks, "describeUserScramCredentials where there are no users", this::describeUsers);
        site.administer(checks, "alterUserScramCredentials, refusals", this::refusedUsers);
    }

    private void describeUsers(Admin admin) throws Exception {
        Checks.equal(Map.of(), Site.get(admin.describeUserScramCredentials().all()), "users");
        Checks.raises(ResourceNotFoundException.class, () -> Site.get(
            admin.describeUserScramCredentials(List.of("nobody")).description("nobody")));
    }

    private void refusedUsers(Admin admin) {
        Checks.raises(ResourceNotFoundException.class, () -> alter(
            admin, new UserScramCredentialDeletion("nobody", ScramMechanism.SCRAM_SHA_256)));
        for (int iterations : new int[] {4095, 16385}) {
            ScramCredentialInfo info = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, iterations);
            Checks.raises(UnacceptableCredentialException.class, () -> alter(
                admin, new UserScramCredentialUpsertion("somebody", info, "secret")));
        }
    }

    private static void alter(Admin admin, UserScramCredentialAlteration alteration) throws Exception {
        Site.get(admin.alterUserScramCredentials(List.of(alteration)).all());
    }
}
