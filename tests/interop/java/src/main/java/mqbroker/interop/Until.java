package mqbroker.interop;

/** Asks again and again until something holds, for what nobody announces. */
final class Until {
    private static final long PATIENCE_MS = 30_000;

    private Until() {
    }

    interface Holds {
        boolean now() throws Exception;
    }

    /** Fails where it does not hold in time; {@code what} says what was waited for. */
    static void holds(String what, Holds holds) throws Exception {
        for (long giveUp = System.currentTimeMillis() + PATIENCE_MS; !holds.now(); Thread.sleep(5)) {
            if (System.currentTimeMillis() > giveUp) {
                throw new IllegalStateException("not within " + PATIENCE_MS + " ms: " + what);
            }
        }
    }
}
