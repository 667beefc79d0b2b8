package mqbroker.interop;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends {@code --count} messages in transactions. What it says of message i when it has sent it is {@code --outcomes} at i, and when it is asked
 * {@code --answers} at i, both of the letters c (commit), r (roll back) and u (unknown), which come again from the first. It is there until it is told to end.
 * With {@code --interval-ms} it waits so long between sends, and goes on after one that failed.
 */
final class Transact {
    private Transact() {
    }

    static void run(Options options, Lines lines, CountDownLatch end) throws Exception {
        String outcomes = options.text("outcomes", "c");
        String answers = options.text("answers", "c");
        TransactionMQProducer producer = new TransactionMQProducer(options.text("group", "interop_transactions"));
        producer.setNamesrvAddr(options.required("namesrv"));
        producer.setSendMsgTimeout(options.number("timeout-ms", 5000));
        producer.setInstanceName(options.text("instance", "DEFAULT"));
        producer.setRetryTimesWhenSendFailed(options.number("retries", producer.getRetryTimesWhenSendFailed()));
        int intervalMs = options.number("interval-ms", 0);
        // A broker that takes the place of another is to hear of it soon.
        producer.setPollNameServerInterval(500);
        producer.setHeartbeatBrokerInterval(500);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object index) {
                return state(outcomes, (Integer) index);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                int index = Integer.parseInt(message.getUserProperty("index"));
                LocalTransactionState state = state(answers, index);
                lines.print("asked", "index", index, "topic", message.getTopic(), "queueId", message.getQueueId(),
                    "times", message.getUserProperty("TRANSACTION_CHECK_TIMES"), "transactionId", message.getTransactionId(),
                    "state", state.name());
                return state;
            }
        });
        producer.start();
        for (int i = 0; i < options.number("count", 1); i++) {
            byte[] body = ("transaction " + i).getBytes(StandardCharsets.UTF_8);
            Message message = new Message(options.required("topic"), "A", "key-" + i, body);
            message.setFlag(7);
            message.putUserProperty("index", String.valueOf(i));
            TransactionSendResult result;
            Thread.sleep(intervalMs);
            try {
                result = producer.sendMessageInTransaction(message, i);
            } catch (MQClientException e) {
                if (intervalMs == 0) {
                    throw e;
                }
                lines.print("failed", "index", i, "error", e.toString());
                continue;
            }
            lines.print("sent", "index", i, "status", result.getSendStatus().name(), "state", result.getLocalTransactionState().name(),
                "transactionId", result.getTransactionId(), "queueId", result.getMessageQueue().getQueueId());
        }
        lines.print("all sent");
        end.await();
        producer.shutdown();
    }

    private static LocalTransactionState state(String letters, int index) {
        switch (letters.charAt(index % letters.length())) {
            case 'c':
                return LocalTransactionState.COMMIT_MESSAGE;
            case 'r':
                return LocalTransactionState.ROLLBACK_MESSAGE;
            default:
                return LocalTransactionState.UNKNOW;
        }
    }
}
