package mqbroker.interop;

import java.util.concurrent.CountDownLatch;

/**
 * An unmodified RocketMQ client, driven from a test by its arguments; what happens is one JSON object a line on stdout.
 *
 * <pre>java -cp ... mqbroker.interop.Peer COMMAND --name value ...</pre>
 *
 * runs one, until it is done or stdin ends; {@code Peer host} runs many in one JVM, see {@link Host}.
 */
public final class Peer {
    private Peer() {
    }

    public static void main(String[] args) throws Exception {
        if (args.length == 1 && args[0].equals("host")) {
            Host.run(System.in, System.out);
            System.exit(0);
        }
        CountDownLatch end = new CountDownLatch(1);
        Thread stdin = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    continue;
                }
            } catch (java.io.IOException e) {
                e.printStackTrace();
            }
            end.countDown();
        });
        stdin.setDaemon(true);
        stdin.start();
        // Client threads that are not daemons would keep the process.
        System.exit(run(args, new Lines(System.out), end));
    }

    /** Runs one command until it is done or {@code end} comes to zero; returns its exit status. */
    static int run(String[] args, Lines lines, CountDownLatch end) {
        try {
            if (args.length == 0) {
                throw new IllegalArgumentException("no command");
            }
            if (args[0].equals("mqadmin")) {
                Admin.run(args, lines);
                return 0;
            }
            Options options = Options.parse(args);
            switch (args[0]) {
                case "produce":
                    Produce.run(options, lines, end);
                    break;
                case "consume":
                    Consume.run(options, lines, end);
                    break;
                case "pull":
                    Pull.run(options, lines);
                    break;
                case "offsets":
                    Offsets.run(options, lines);
                    break;
                case "mode":
                    Mode.run(options, lines);
                    break;
                case "allocate":
                    Allocate.run(options, lines);
                    break;
                case "ids":
                    Ids.run(options, lines);
                    break;
                case "createtopic":
                    CreateTopic.run(options, lines);
                    break;
                case "transact":
                    Transact.run(options, lines, end);
                    break;
                case "filters":
                    Filters.run(options, lines);
                    break;
                default:
                    throw new IllegalArgumentException("unknown command " + args[0]);
            }
            return 0;
        } catch (Throwable e) {
            lines.print("error", "error", e.toString());
            e.printStackTrace();
            return 1;
        }
    }
}
