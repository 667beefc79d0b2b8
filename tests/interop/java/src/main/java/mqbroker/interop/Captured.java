package mqbroker.interop;

import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/** Standard output and error of a thread and of those it starts, as events "stdout" and "stderr", a line each. */
final class Captured extends OutputStream {
    private static final InheritableThreadLocal<Captured[]> MINE = new InheritableThreadLocal<>();

    private final Lines lines;
    private final String event;
    private final ByteArrayOutputStream line = new ByteArrayOutputStream();

    private Captured(Lines lines, String event) {
        this.lines = lines;
        this.event = event;
    }

    /** Puts streams that know whose output it is in the place of the process's. */
    static void install() {
        System.setOut(new PrintStream(new Switch(0, System.out), true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(new Switch(1, System.err), true, StandardCharsets.UTF_8));
    }

    /** From now on, what this thread and those it starts print goes to {@code lines}. */
    static void into(Lines lines) {
        MINE.set(new Captured[] {new Captured(lines, "stdout"), new Captured(lines, "stderr")});
    }

    /** Hands over lines that were not ended. */
    static void end() {
        for (Captured captured : MINE.get()) {
            captured.handOver();
        }
    }

    @Override
    public synchronized void write(int b) {
        if (b == '\n') {
            lines.print(event, "text", line.toString(StandardCharsets.UTF_8));
            line.reset();
        } else {
            line.write(b);
        }
    }

    private synchronized void handOver() {
        if (line.size() > 0) {
            write('\n');
        }
    }

    private static final class Switch extends OutputStream {
        private final int which;
        private final PrintStream otherwise;

        Switch(int which, PrintStream otherwise) {
            this.which = which;
            this.otherwise = otherwise;
        }

        @Override
        public void write(int b) {
            Captured[] mine = MINE.get();
            if (mine == null) {
                otherwise.write(b);
            } else {
                mine[which].write(b);
            }
        }

        @Override
        public void flush() {
            otherwise.flush();
        }
    }
}
