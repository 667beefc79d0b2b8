package mqbroker.interop;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.TimeZone;
import org.apache.rocketmq.common.message.MessageClientIDSetter;

/** Reads unique ids from the file {@code --ids}, one a line, and writes what Java reads in each to {@code --results}. */
final class Ids {
    private Ids() {
    }

    static void run(Options options, Lines lines) throws Exception {
        List<String> results = new ArrayList<>();
        for (String id : Files.readAllLines(Path.of(options.required("ids")), StandardCharsets.UTF_8)) {
            long time = MessageClientIDSetter.getNearlyTimeFromID(id).getTime();
            // It counts from the start of the month where it runs; ours do from that of UTC.
            time += TimeZone.getDefault().getOffset(time);
            results.add(MessageClientIDSetter.getIPStrFromID(id) + " " + MessageClientIDSetter.getPidFromID(id) + " " + time);
        }
        Files.write(Path.of(options.required("results")), results, StandardCharsets.UTF_8);
        lines.print("done");
    }
}
