import java.io.PrintStream;
import java.util.List;
import java.util.concurrent.ExecutionException;

/** Runs checks one after the other; each prints "ok NAME" or "FAILED NAME: why", and the rest go on. */
final class Checks {
    /** One check; whatever it throws is why it failed. */
    interface Body {
        void run() throws Exception;
    }

    private final PrintStream out;
    private final List<String> prefixes;
    private int passed;
    private int failed;

    /** Only checks whose names begin with one of {@code prefixes} are run; all of them if there is none. */
    Checks(PrintStream out, List<String> prefixes) {
        this.out = out;
        this.prefixes = prefixes;
    }

    void check(String name, Body body) {
        if (!prefixes.isEmpty() && prefixes.stream().noneMatch(name::startsWith)) {
            return;
        }
        try {
            body.run();
            passed++;
            out.println("ok " + name);
        } catch (Exception | AssertionError error) {
            failed++;
            out.println("FAILED " + name + ": " + describe(error));
        }
    }

    /** Whether there were checks, and all of them passed. */
    boolean passed() {
        return passed > 0 && failed == 0;
    }

    /** Fails the check, unless what was seen is what had to be seen. */
    static void equal(Object expected, Object seen, String what) {
        if (!expected.equals(seen)) {
            throw new AssertionError(what + " is " + seen + ", not " + expected);
        }
    }

    /** Fails the check, unless it holds. */
    static void that(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError("not so: " + what);
        }
    }

    /** Fails the check, unless {@code body} throws this error, by itself or as that of a future. */
    static <E extends Throwable> E raises(Class<E> expected, Body body) {
        try {
            body.run();
        } catch (Throwable error) {
            for (Throwable each = error; each != null; each = each.getCause()) {
                if (expected.isInstance(each)) {
                    return expected.cast(each);
                }
            }
            throw new AssertionError("expected " + expected.getSimpleName() + ", got " + describe(error), error);
        }
        throw new AssertionError("expected " + expected.getSimpleName() + ", got no error");
    }

    private static String describe(Throwable error) {
        Throwable shown = error instanceof ExecutionException && error.getCause() != null ? error.getCause() : error;
        if (shown instanceof AssertionError) {
            return shown.getMessage();
        }
        StackTraceElement[] trace = error.getStackTrace();
        String where = "";
        for (StackTraceElement each : trace) {
            if (each.getClassName().indexOf('.') < 0) { // ours: it has no package
                where = " at " + each.getFileName() + ":" + each.getLineNumber();
                break;
            }
        }
        return shown.getClass().getSimpleName() + ": " + shown.getMessage() + where;
    }
}
