package mqbroker.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * A story of one client mode, told in events without addresses, ids and times: told of two systems, it must be the same.
 *
 * {@code --topic} is its own, {@code --broker} the address where it is made with {@code --queues} queues, and the topics for retries
 * and dead letters with it, for clients find new routes only every 30 s.
 */
final class Mode {
    private static final List<String> OF_ONE_RUN = List.of("UNIQ_KEY", "ORIGIN_MESSAGE_ID", "CONSUME_START_TIME", "CORRELATION_ID",
        "REPLY_TO_CLIENT", "ARRIVE_TIME", "PUSH_REPLY_TIME", "MAX_OFFSET");

    final String namesrv;
    final String topic;
    final String group;
    final String traces;
    final String broker;
    final Lines lines;
    final DefaultMQProducer producer;
    final DefaultMQAdminExt admin;

    Mode(Options options, Lines lines) throws Exception {
        this.lines = lines;
        namesrv = options.required("namesrv");
        topic = options.required("topic");
        group = topic + "-group";
        broker = options.required("broker");
        admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(namesrv);
        admin.start();
        makeTopic(topic, options.number("queues", 1));
        makeTopic("%RETRY%" + group, 1);
        makeTopic("%DLQ%" + group, 1);
        traces = topic + "-traces";
        if (options.flag("trace")) {
            makeTopic(traces, 1);
        }
        producer = new DefaultMQProducer(topic + "-producer", options.flag("trace"), traces);
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(20_000);
        producer.start();
    }

    static void run(Options options, Lines lines) throws Exception {
        Mode mode = new Mode(options, lines);
        try {
            switch (options.required("mode")) {
                case "retry":
                    PushModes.retry(mode);
                    break;
                case "dead-letter":
                    PushModes.deadLetter(mode);
                    break;
                case "suspend":
                    PushModes.suspend(mode);
                    break;
                case "orderly-give-up":
                    PushModes.orderlyGiveUp(mode);
                    break;
                case "delay":
                    PushModes.delay(mode);
                    break;
                case "trace":
                    PushModes.trace(mode);
                    break;
                case "request":
                    RequestModes.request(mode);
                    break;
                case "ask":
                    RequestModes.ask(mode, options.number("count", 1));
                    break;
                case "answer":
                    RequestModes.answer(mode, options.number("count", 1));
                    break;
                case "request-unanswered":
                    RequestModes.unanswered(mode);
                    break;
                case "pull":
                    PullModes.pull(mode);
                    break;
                case "lite-assign":
                    PullModes.assign(mode);
                    break;
                case "lite-subscribe":
                    PullModes.subscribe(mode);
                    break;
                case "query":
                    PullModes.query(mode);
                    break;
                case "sql":
                    SqlModes.sql(mode);
                    break;
                default:
                    throw new IllegalArgumentException("--mode " + options.required("mode"));
            }
            lines.print("done");
        } finally {
            mode.producer.shutdown();
            mode.admin.shutdown();
        }
    }

    void makeTopic(String name, int queues) throws Exception {
        TopicConfig config = new TopicConfig(name);
        config.setReadQueueNums(queues);
        config.setWriteQueueNums(queues);
        config.setPerm(6);
        admin.createAndUpdateTopicConfig(broker, config);
        Until.holds("a route to " + name, () -> hasRoute(name));
    }

    private boolean hasRoute(String name) throws Exception {
        try {
            admin.examineTopicRouteInfo(name);
            return true;
        } catch (MQClientException e) {
            return false;
        }
    }

    Message message(String body) {
        return new Message(topic, body.getBytes(StandardCharsets.UTF_8));
    }

    /** Sends each text to the queue, in order. */
    void send(int queue, String... bodies) throws Exception {
        for (String body : bodies) {
            send(queue, message(body));
        }
    }

    /** Sends it to the queue, and waits until it can be read: the Java broker answers before that. */
    SendResult send(int queue, Message message) throws Exception {
        SendResult result = producer.send(message, (queues, m, arg) -> queues.get((Integer) arg), queue);
        Until.holds(result + " can be read", () -> admin.maxOffset(result.getMessageQueue()) > result.getQueueOffset());
        return result;
    }

    /** A push consumer of the topic, not started. */
    DefaultMQPushConsumer consumer() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.subscribe(topic, "*");
        return consumer;
    }

    static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static List<String> texts(List<MessageExt> messages) {
        List<String> texts = new ArrayList<>();
        for (MessageExt message : messages) {
            texts.add(text(message));
        }
        return texts;
    }

    /** What a message is, without what differs from run to run. */
    void tell(String event, MessageExt m) {
        Map<String, String> properties = new TreeMap<>(m.getProperties());
        for (String name : OF_ONE_RUN) {
            properties.computeIfPresent(name, (n, value) -> "?");
        }
        // Of late messages the Java broker keeps how they were sent.
        properties.remove("DELAY");
        properties.remove("WAIT");
        lines.print(event, "topic", m.getTopic(), "body", text(m), "queueId", m.getQueueId(), "queueOffset", m.getQueueOffset(),
            "reconsumeTimes", m.getReconsumeTimes(), "sysFlag", m.getSysFlag(), "flag", m.getFlag(), "properties", properties);
    }
}
