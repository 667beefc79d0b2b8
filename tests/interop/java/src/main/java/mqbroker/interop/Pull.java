package mqbroker.interop;

import java.util.Collection;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Reads every queue of {@code --topic} from its first to its last message, by pulls that do not wait; {@code --tags} filters. */
final class Pull {
    private Pull() {
    }

    @SuppressWarnings("deprecation")
    static void run(Options options, Lines lines) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(options.text("group", "interop_pull"));
        consumer.setNamesrvAddr(options.required("namesrv"));
        consumer.start();
        String tags = options.text("tags", "*");
        Set<MessageQueue> queues = consumer.fetchSubscribeMessageQueues(options.required("topic"));
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
}
