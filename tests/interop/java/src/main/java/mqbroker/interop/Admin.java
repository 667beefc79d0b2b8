package mqbroker.interop;

import org.apache.rocketmq.tools.command.MQAdminStartup;

/** The unmodified mqadmin, inside this JVM: what it prints goes wherever System.out and System.err do. */
final class Admin extends MQAdminStartup {
    private Admin() {
    }

    /** {@code args} are those of mqadmin, behind "mqadmin" itself. Two at once would share their name server's address. */
    static synchronized void run(String[] args, Lines lines) {
        String[] own = new String[args.length - 1];
        System.arraycopy(args, 1, own, 0, own.length);
        // Each start adds all commands again, and the first of a name is run, with the clients that it has shut down.
        subCommandList.clear();
        main0(own, null);
        System.out.flush();
    }
}
