package mqbroker.interop;

import java.util.Collection;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Reads every queue of {@code --topic} from its first to its last message, by pulls that do not wait; {@code --tags} filters. With
 * {@code --count} it begins when there are as many, of whatever tags: the Java broker answers who sends before that.
 */
final class Pull {
    private Pull() {
    }

    @SuppressWarnings("deprecation")
    static void run(Options options, Lines lines) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(options.text("group", "interop_pull"));
        consumer.setNamesrvAddr(options.required("namesrv"));
        consumer.start();
        String tags = options.text("tags", "*");
        String topic = options.required("topic");
        int wanted = options.number("count", 0);
        Until.holds(wanted + " messages in " + topic, () -> wanted == 0 || count(consumer, topic) >= wanted);
        Set<MessageQueue> queues = consumer.fetchSubscribeMessageQueues(topic);
        int count = 0;
        for (MessageQueue queue : queues) {
            long offset = consumer.minOffset(queue);
            long end = consumer.maxOffset(queue);
            while (offset < end) {
                PullResult result = consumer.pull(queue, tags, offset, options.number("max", 32));
                Collection<MessageExt> found = result.getMsgFoundList();
                if (found != null) {
                    for (MessageExt m : found) {
                        lines.message(m, queue.getBrokerName());
                        count++;
                    }
                }
                if (result.getNextBeginOffset() <= offset) {
                    throw new IllegalStateException("no way on at " + queue + " offset " + offset + ": " + result);
                }
                offset = result.getNextBeginOffset();
            }
        }
        consumer.shutdown();
        lines.print("done", "queues", queues.size(), "count", count);
    }

    @SuppressWarnings("deprecation")
    private static long count(DefaultMQPullConsumer consumer, String topic) throws Exception {
        long count = 0;
        try {
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
                count += consumer.maxOffset(queue) - consumer.minOffset(queue);
            }
        } catch (MQClientException e) {
            // A topic that was made by sending to it has a route a moment later.
            return 0;
        }
        return count;
    }
}
