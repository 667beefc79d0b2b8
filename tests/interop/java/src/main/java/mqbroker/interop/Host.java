package mqbroker.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;

/**
 * Many peers side by side in one JVM, for a JVM's start is dear. Each line of stdin is an order:
 *
 * <pre>{"id": ID, "args": [COMMAND, ...]}   start a peer
 * {"id": ID, "order": "end"}           what the end of stdin is to a peer that runs alone
 * {"id": ID, "order": "interrupt"}     for commands that would never end</pre>
 *
 * All that a peer prints carries its "id"; the last is the event "exit" with its "status".
 */
final class Host {
    private final PrintStream out;
    private final Map<String, CountDownLatch> ends = new ConcurrentHashMap<>();
    private final Map<String, Thread> threads = new ConcurrentHashMap<>();

    private Host(PrintStream out) {
        this.out = out;
    }

    static void run(InputStream in, PrintStream out) throws IOException {
        Captured.install();
        Host host = new Host(out);
        BufferedReader orders = new BufferedReader(new InputStreamReader(in, StandardCharsets.UTF_8));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            host.obey(JSON.parseObject(order));
        }
    }

    private void obey(JSONObject order) {
        String id = order.getString("id");
        if (order.containsKey("args")) {
            String[] args = order.getJSONArray("args").toArray(new String[0]);
            ends.put(id, new CountDownLatch(1));
            Thread thread = new Thread(() -> runPeer(id, args), id);
            threads.put(id, thread);
            thread.start();
        } else if (order.getString("order").equals("end")) {
            ends.get(id).countDown();
        } else {
            threads.get(id).interrupt();
        }
    }

    private void runPeer(String id, String[] args) {
        Lines lines = new Lines(out, id);
        Captured.into(lines);
        int status = Peer.run(args, lines, ends.get(id));
        Captured.end();
        lines.print("exit", "status", status);
    }
}
