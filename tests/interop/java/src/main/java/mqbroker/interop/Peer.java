package mqbroker.interop;

/**
 * An unmodified RocketMQ client, driven from a test by its arguments; what happens is one JSON object a line on stdout.
 *
 * <pre>java -cp ... mqbroker.interop.Peer produce|consume|pull|offsets|createtopic|filters --name value ...</pre>
 */
public final class Peer {
    private Peer() {
    }

    public static void main(String[] args) throws Exception {
        if (args.length == 0) {
            System.err.println("usage: Peer produce|consume|pull|offsets|createtopic|filters [--name value ...]");
            System.exit(2);
        }
        Options options = Options.parse(args);
        Lines lines = new Lines(System.out);
        try {
            switch (args[0]) {
                case "produce":
                    Produce.run(options, lines);
                    break;
                case "consume":
                    Consume.run(options, lines);
                    break;
                case "pull":
                    Pull.run(options, lines);
                    break;
                case "offsets":
                    Offsets.run(options, lines);
                    break;
                case "createtopic":
                    CreateTopic.run(options, lines);
                    break;
                case "filters":
                    Filters.run(options, lines);
                    break;
                default:
                    throw new IllegalArgumentException("unknown command " + args[0]);
            }
        } catch (Throwable e) {
            lines.print("error", "error", e.toString());
            e.printStackTrace();
            System.exit(1);
        }
        // Client threads that are not daemons would keep the process.
        System.exit(0);
    }
}
