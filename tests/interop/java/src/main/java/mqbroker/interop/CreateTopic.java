package mqbroker.interop;

import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Creates or changes {@code --topic} with {@code --queues} queues on the broker at {@code --broker}. */
final class CreateTopic {
    private CreateTopic() {
    }

    static void run(Options options, Lines lines) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(options.required("namesrv"));
        admin.start();
        TopicConfig config = new TopicConfig(options.required("topic"));
        config.setReadQueueNums(options.number("queues", 4));
        config.setWriteQueueNums(options.number("queues", 4));
        config.setPerm(options.number("perm", 6));
        admin.createAndUpdateTopicConfig(options.required("broker"), config);
        admin.shutdown();
        lines.print("done");
    }
}
