package mqbroker.interop;

import com.alibaba.fastjson.JSON;
import java.io.PrintStream;
import java.security.MessageDigest;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageExt;

/** Writes events as JSON lines; callable from any thread. */
final class Lines {
    private final PrintStream out;
    private final String id;

    Lines(PrintStream out) {
        this(out, null);
    }

    /** With an id, every line has it. */
    Lines(PrintStream out, String id) {
        this.out = out;
        this.id = id;
    }

    /** Prints {@code {"event": event, name: value, ...}}. */
    void print(String event, Object... namesAndValues) {
        Map<String, Object> line = new LinkedHashMap<>();
        if (id != null) {
            line.put("id", id);
        }
        line.put("event", event);
        for (int i = 0; i < namesAndValues.length; i += 2) {
            line.put((String) namesAndValues[i], namesAndValues[i + 1]);
        }
        String text = JSON.toJSONString(line);
        synchronized (out) {
            out.println(text);
            out.flush();
        }
    }

    void message(MessageExt m, String brokerName) {
        print("message", "topic", m.getTopic(), "broker", brokerName, "queueId", m.getQueueId(), "queueOffset", m.getQueueOffset(),
            "physicalOffset", m.getCommitLogOffset(), "size", m.getBody().length, "sha256", sha256(m.getBody()), "msgId", m.getMsgId(),
            "tags", m.getTags(), "keys", m.getKeys(), "flag", m.getFlag(), "sysFlag", m.getSysFlag(), "reconsumeTimes", m.getReconsumeTimes(),
            "bornTimestamp", m.getBornTimestamp(), "storeTimestamp", m.getStoreTimestamp(), "properties", m.getProperties());
    }

    static String sha256(byte[] data) {
        try {
            StringBuilder hex = new StringBuilder();
            for (byte b : MessageDigest.getInstance("SHA-256").digest(data)) {
                hex.append(String.format("%02x", b));
            }
            return hex.toString();
        } catch (java.security.NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }
}
