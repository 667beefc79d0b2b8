package mqbroker.interop;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers that choose by an SQL92 expression, from a broker that is told to take such only after the first was refused. */
final class SqlModes {
    private static final String SETTING = "enablePropertyFilter";
    private static final String NEAR = "price BETWEEN 20 AND 80 AND region IN ('north', 'east')";
    private static final String[] ASKED = {
        NEAR, "price >= 100", "region IS NULL", "TAGS = 'A' OR price < 10.5", "NOT (price > 30)", "price > 1000"};
    private static final int COUNT = 12;

    private SqlModes() {
    }

    static void sql(Mode mode) throws Exception {
        enable(mode, false);
        refused(mode, NEAR);
        enable(mode, true);
        refused(mode, "price >");
        for (int i = 0; i < COUNT; i++) {
            mode.send(0, message(mode, i));
        }
        push(mode);
        pull(mode);
        litePull(mode);
        enable(mode, false);
    }

    private static void enable(Mode mode, boolean enabled) throws Exception {
        Properties changes = new Properties();
        changes.setProperty(SETTING, String.valueOf(enabled));
        mode.admin.updateBrokerConfig(mode.broker, changes);
        mode.lines.print("setting", SETTING, mode.admin.getBrokerConfig(mode.broker).getProperty(SETTING));
    }

    private static Message message(Mode mode, int i) {
        Message message = mode.message("message " + i);
        message.setTags("ABC".substring(i % 3, i % 3 + 1));
        if (i % 5 != 4) {
            message.putUserProperty("region", new String[] {"north", "south", "east"}[i % 3]);
        }
        message.putUserProperty("price", i % 7 == 6 ? "free" : String.valueOf(i * 10));
        return message;
    }

    /** The client asks the broker when it starts whether it takes the expression. */
    private static void refused(Mode mode, String expression) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(mode.group + "-refused");
        consumer.setNamesrvAddr(mode.namesrv);
        consumer.subscribe(mode.topic, MessageSelector.bySql(expression));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        try {
            consumer.start();
            mode.lines.print("started", "expression", expression);
        } catch (MQClientException e) {
            String why = e.getErrorMessage();
            // Where an expression ends too early, the parsers of the two say in words of their own.
            mode.lines.print("refused", "code", e.getResponseCode(), "why", why.contains("not support") ? why : "");
        }
        consumer.shutdown();
    }

    private static void push(Mode mode) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(mode.group);
        consumer.setNamesrvAddr(mode.namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(mode.topic, MessageSelector.bySql(NEAR));
        List<String> came = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch some = new CountDownLatch(4);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            came.addAll(Mode.texts(messages));
            messages.forEach(message -> some.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        some.await(30, TimeUnit.SECONDS);
        MessageQueue queue = mode.producer.fetchPublishMessageQueues(mode.topic).get(0);
        long committed = 0;
        // One more that is wanted: what was left out before it counts as consumed.
        mode.send(0, message(mode, 5));
        for (long end = System.currentTimeMillis() + 30_000; committed <= COUNT && System.currentTimeMillis() < end; Thread.sleep(20)) {
            consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
            committed = mode.admin.examineConsumeStats(mode.group, mode.topic).getOffsetTable().get(queue).getConsumerOffset();
        }
        consumer.shutdown();
        Collections.sort(came);
        mode.lines.print("pushed", "came", came, "committed", committed);
    }

    @SuppressWarnings("deprecation")
    private static void pull(Mode mode) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(mode.group + "-pull");
        consumer.setNamesrvAddr(mode.namesrv);
        consumer.start();
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(mode.topic).iterator().next();
        PullModes.tell(mode, "by tag", consumer.pull(queue, MessageSelector.byTag("A || B"), 0, 32));
        // Expressions go only to brokers whose version is known, and heartbeats tell that.
        consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory().sendHeartbeatToAllBrokerWithLock();
        for (String expression : ASKED) {
            PullModes.tell(mode, expression, consumer.pull(queue, MessageSelector.bySql(expression), 0, 32));
            PullModes.tell(mode, expression, consumer.pull(queue, MessageSelector.bySql(expression), 3, 2));
        }
        consumer.shutdown();
    }

    private static void litePull(Mode mode) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(mode.group + "-lite");
        consumer.setNamesrvAddr(mode.namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(mode.topic, MessageSelector.bySql(NEAR));
        consumer.start();
        mode.lines.print("lite", "came", PullModes.poll(consumer, 5));
        consumer.shutdown();
    }
}
