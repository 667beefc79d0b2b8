package mqbroker.interop;

import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.common.message.MessageQueue;

/** Prints, for each queue of {@code --topic}: min, max, the offset at {@code --time} (ms) and what {@code --group} has committed (-1: nothing). */
final class Offsets {
    private Offsets() {
    }

    @SuppressWarnings("deprecation")
    static void run(Options options, Lines lines) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(options.text("group", "interop_offsets"));
        consumer.setNamesrvAddr(options.required("namesrv"));
        consumer.start();
        long time = Long.parseLong(options.text("time", "0"));
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(options.required("topic"))) {
            lines.print("offsets", "broker", queue.getBrokerName(), "queueId", queue.getQueueId(), "min", consumer.minOffset(queue),
                "max", consumer.maxOffset(queue), "atTime", consumer.searchOffset(queue, time),
                "committed", consumer.fetchConsumeOffset(queue, true));
        }
        consumer.shutdown();
        lines.print("done");
    }
}
