package mqbroker.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Sends {@code --count} messages in one {@code --mode}: sync, async, oneway, batch or selector (every message to queue {@code --queue}).
 *
 * The body of message i is {@code "<prefix> i "} and then as many letters as fill {@code --size} bytes; tags cycle through {@code --tags};
 * with {@code --keys true} the key of message i is {@code "<prefix>-i"}. With {@code --interval-ms} it waits so long between synchronous
 * sends, and ends early when it is told to. With {@code --stay true} it is there until it is told to end;
 * with {@code --trace true} it sends traces as well; with {@code --readable true} it ends when all can be read that was answered,
 * for the Java broker answers before that.
 */
final class Produce {
    private final Options options;
    private final Lines lines;
    private final String prefix;
    private final String[] tags;
    private final int size;
    private final AtomicInteger sent = new AtomicInteger();
    private final AtomicInteger failed = new AtomicInteger();
    /** How far each queue has to be readable. */
    private final Map<MessageQueue, Long> ends = new ConcurrentHashMap<>();

    private Produce(Options options, Lines lines) {
        this.options = options;
        this.lines = lines;
        this.prefix = options.text("prefix", "message");
        this.tags = options.text("tags", "").split(",");
        this.size = options.number("size", 0);
    }

    static void run(Options options, Lines lines, CountDownLatch end) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(options.text("group", "interop_producer"), options.flag("trace"));
        producer.setNamesrvAddr(options.required("namesrv"));
        producer.setSendMsgTimeout(options.number("timeout-ms", 5000));
        producer.setVipChannelEnabled(options.flag("vip"));
        producer.setInstanceName(options.text("instance", "DEFAULT"));
        producer.setPollNameServerInterval(options.number("poll-ms", producer.getPollNameServerInterval()));
        producer.setHeartbeatBrokerInterval(options.number("poll-ms", producer.getHeartbeatBrokerInterval()));
        producer.start();
        lines.print("started", "clientId", producer.getDefaultMQProducerImpl().getmQClientFactory().getClientId());
        Produce produce = new Produce(options, lines);
        produce.send(producer, end);
        if (options.flag("readable")) {
            Until.holds("queues can be read up to " + produce.ends, () -> produce.isReadable(producer));
        }
        if (options.flag("stay")) {
            end.await();
        }
        producer.shutdown();
        lines.print("done", "sent", produce.sent.get(), "failed", produce.failed.get());
    }

    private void send(DefaultMQProducer producer, CountDownLatch end) throws Exception {
        int count = options.number("count", 1);
        switch (options.text("mode", "sync")) {
            case "sync":
                int intervalMs = options.number("interval-ms", 0);
                for (int i = 0; i < count && !(intervalMs > 0 && end.await(intervalMs, TimeUnit.MILLISECONDS)); i++) {
                    attempt(i, message(i), m -> producer.send(m));
                }
                break;
            case "selector":
                int queue = options.number("queue", 0);
                for (int i = 0; i < count; i++) {
                    attempt(i, message(i), m -> producer.send(m, (queues, x, arg) -> queues.get((Integer) arg), queue));
                }
                break;
            case "async":
                sendAsync(producer, count);
                break;
            case "oneway":
                for (int i = 0; i < count; i++) {
                    Message m = message(i);
                    producer.sendOneway(m);
                    report(i, m, null);
                }
                break;
            case "batch":
                sendBatches(producer, count, options.number("batch", 20));
                break;
            default:
                throw new IllegalArgumentException("--mode " + options.text("mode", ""));
        }
    }

    private boolean isReadable(DefaultMQProducer producer) throws Exception {
        for (Map.Entry<MessageQueue, Long> end : ends.entrySet()) {
            if (producer.maxOffset(end.getKey()) < end.getValue()) {
                return false;
            }
        }
        return true;
    }

    private interface Send {
        SendResult send(Message message) throws Exception;
    }

    private void attempt(int i, Message message, Send send) {
        try {
            report(i, message, send.send(message));
        } catch (Exception e) {
            failure(i, e);
        }
    }

    private void sendAsync(DefaultMQProducer producer, int count) throws Exception {
        CountDownLatch answers = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            int index = i;
            Message message = message(i);
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    report(index, message, result);
                    answers.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    failure(index, e);
                    answers.countDown();
                }
            });
        }
        if (!answers.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException(answers.getCount() + " asynchronous sends were never answered");
        }
    }

    private void sendBatches(DefaultMQProducer producer, int count, int batchSize) throws Exception {
        for (int first = 0; first < count; first += batchSize) {
            List<Message> batch = new ArrayList<>();
            for (int i = first; i < Math.min(count, first + batchSize); i++) {
                batch.add(message(i));
            }
            SendResult result = producer.send(batch);
            for (int i = 0; i < batch.size(); i++) {
                report(first + i, batch.get(i), result);
            }
            if (!batch.isEmpty()) {
                ends.merge(result.getMessageQueue(), result.getQueueOffset() + batch.size(), Math::max);
            }
        }
    }

    private Message message(int i) {
        StringBuilder body = new StringBuilder(prefix).append(' ').append(i).append(' ');
        while (body.length() < size) {
            body.append((char) ('a' + body.length() % 26));
        }
        String tag = tags[i % tags.length];
        String key = options.flag("keys") ? prefix + "-" + i : "";
        Message message = new Message(options.required("topic"), tag, key, body.toString().getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("index", String.valueOf(i));
        message.putUserProperty("umlaut", "\u00e4\u4e2d");
        return message;
    }

    private void report(int i, Message message, SendResult result) {
        sent.incrementAndGet();
        String sha256 = Lines.sha256(message.getBody());
        if (result == null) {
            lines.print("sent", "index", i, "sha256", sha256);
        } else {
            ends.merge(result.getMessageQueue(), result.getQueueOffset() + 1, Math::max);
            lines.print("sent", "index", i, "sha256", sha256, "status", result.getSendStatus().name(), "msgId", result.getMsgId(),
                "offsetMsgId", result.getOffsetMsgId(), "broker", result.getMessageQueue().getBrokerName(),
                "queueId", result.getMessageQueue().getQueueId(), "queueOffset", result.getQueueOffset());
        }
    }

    private void failure(int i, Throwable e) {
        failed.incrementAndGet();
        lines.print("failed", "index", i, "error", e.toString());
    }
}
