import java.io.PrintStream;
import java.util.List;

/**
 * The Java client of Apache Kafka against one broker: {@code java Smoke HOST:PORT [PREFIX...]}.
 *
 * <p>Every check prints one line; with prefixes, only checks whose names begin with one of them are run. Exit
 * codes: 0 all passed, 1 one failed, 2 wrong usage.
 */
final class Smoke {
    private Smoke() {}

    public static void main(String[] arguments) {
        if (arguments.length == 0) {
            System.err.println("usage: java Smoke HOST:PORT [PREFIX...]");
            System.exit(2);
        }
        PrintStream out = System.out;
        System.setOut(System.err); // what libraries print is not a result
        Site site = new Site(arguments[0]);
        Checks checks = new Checks(out, List.of(arguments).subList(1, arguments.length));
        new RecordChecks(site).run(checks);
        new TransactionChecks(site).run(checks);
        new GroupChecks(site).run(checks);
        new TopicAdminChecks(site).run(checks);
        new ConfigAdminChecks(site).run(checks);
        new GroupAdminChecks(site).run(checks);
        new RefusalChecks(site).run(checks);
        System.exit(checks.passed() ? 0 : 1);
    }
}
