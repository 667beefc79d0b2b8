package mqbroker.interop;

import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/**
 * A push consumer, until {@code --count} messages came or it is told to end. Prints every message, and the queues it got at each
 * rebalance that changes them, so that a test can wait for a balance. The first {@code --refuse} messages are answered with "later".
 */
final class Consume {
    private Consume() {
    }

    static void run(Options options, Lines lines, CountDownLatch end) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.required("group"));
        consumer.setNamesrvAddr(options.required("namesrv"));
        consumer.setVipChannelEnabled(options.flag("vip"));
        consumer.setConsumeFromWhere(options.text("from", "first").equals("first")
            ? ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET : ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        consumer.setMessageModel(options.flag("broadcast") ? MessageModel.BROADCASTING : MessageModel.CLUSTERING);
        consumer.setInstanceName(options.text("instance", "DEFAULT"));
        consumer.setPollNameServerInterval(options.number("poll-ms", consumer.getPollNameServerInterval()));
        consumer.setHeartbeatBrokerInterval(options.number("poll-ms", consumer.getHeartbeatBrokerInterval()));
        // Without it, what the listener has just taken may not be counted as consumed when the last offsets are told.
        consumer.setAwaitTerminationMillisWhenShutdown(10_000);
        consumer.setAllocateMessageQueueStrategy(new Reporting(options.required("topic"), lines));
        consumer.subscribe(options.required("topic"), options.text("tags", "*"));
        int count = options.number("count", Integer.MAX_VALUE);
        AtomicInteger left = new AtomicInteger(count);
        AtomicInteger toRefuse = new AtomicInteger(options.number("refuse", 0));
        if (options.flag("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                handle(messages, context.getMessageQueue(), lines, left, end);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                if (toRefuse.getAndDecrement() > 0) {
                    lines.print("refused", "count", messages.size());
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                handle(messages, context.getMessageQueue(), lines, left, end);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        lines.print("started", "clientId", consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId());
        int persistMs = options.number("persist-ms", 0);
        while (!end.await(persistMs > 0 ? persistMs : Long.MAX_VALUE, TimeUnit.MILLISECONDS)) {
            // The client's own timer begins after ten seconds.
            consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        }
        consumer.shutdown();
        lines.print("done");
    }

    private static void handle(List<MessageExt> messages, MessageQueue queue, Lines lines, AtomicInteger left, CountDownLatch end) {
        for (MessageExt m : messages) {
            lines.message(m, queue.getBrokerName());
            if (left.decrementAndGet() <= 0) {
                end.countDown();
            }
        }
    }

    /** The averaging strategy, which also tells what it gave. */
    private static final class Reporting implements AllocateMessageQueueStrategy {
        private final AllocateMessageQueueStrategy averagely = new AllocateMessageQueueAveragely();
        private final String topic;
        private final Lines lines;
        private List<MessageQueue> last;

        Reporting(String topic, Lines lines) {
            this.topic = topic;
            this.lines = lines;
        }

        @Override
        public List<MessageQueue> allocate(String group, String clientId, List<MessageQueue> queues, List<String> clientIds) {
            List<MessageQueue> mine = averagely.allocate(group, clientId, queues, clientIds);
            boolean ours = !queues.isEmpty() && queues.get(0).getTopic().equals(topic);
            if (ours && !mine.equals(last)) {
                last = mine;
                lines.print("assigned", "clients", clientIds.size(),
                    "queues", mine.stream().map(q -> q.getBrokerName() + ":" + q.getQueueId()).collect(Collectors.toList()));
            }
            return mine;
        }

        @Override
        public String getName() {
            return averagely.getName();
        }
    }
}
