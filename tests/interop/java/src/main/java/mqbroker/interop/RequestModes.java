package mqbroker.interop;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Requests that are sent as messages, and their replies. */
final class RequestModes {
    private RequestModes() {
    }

    /** A request that waits for its reply, and one that is called back. */
    static void request(Mode mode) throws Exception {
        DefaultMQPushConsumer consumer = mode.consumer();
        BlockingQueue<String> replied = new LinkedBlockingQueue<>();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                mode.tell("asked", message);
                try {
                    byte[] body = ("reply to " + Mode.text(message)).getBytes(StandardCharsets.UTF_8);
                    Message reply = MessageUtil.createReplyMessage(message, body);
                    replied.add(mode.producer.send(reply, 20_000).getSendStatus().name());
                } catch (Exception e) {
                    replied.add(e.toString());
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Message reply = mode.producer.request(mode.message("one"), 20_000);
        mode.tell("reply", (MessageExt) reply);
        CountDownLatch called = new CountDownLatch(1);
        mode.producer.request(mode.message("two"), new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                mode.tell("called back", (MessageExt) message);
                called.countDown();
            }

            @Override
            public void onException(Throwable e) {
                mode.lines.print("called back", "error", e.toString());
                called.countDown();
            }
        }, 20_000);
        mode.lines.print("both", "whole", called.await(30, TimeUnit.SECONDS));
        for (int i = 0; i < 2; i++) {
            mode.lines.print("replied", "status", replied.poll(30, TimeUnit.SECONDS));
        }
        consumer.shutdown();
    }

    /** Requests that others reply to. */
    static void ask(Mode mode, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            MessageExt reply = (MessageExt) mode.producer.request(mode.message("question " + i), 20_000);
            mode.lines.print("got", "body", Mode.text(reply), "tags", reply.getTags());
        }
    }

    /** Replies to the requests of others. */
    static void answer(Mode mode, int count) throws Exception {
        DefaultMQPushConsumer consumer = mode.consumer();
        CountDownLatch replied = new CountDownLatch(count);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    byte[] body = ("reply to " + Mode.text(message)).getBytes(StandardCharsets.UTF_8);
                    mode.producer.send(MessageUtil.createReplyMessage(message, body), 20_000);
                    replied.countDown();
                } catch (Exception e) {
                    mode.lines.print("failed", "error", e.toString());
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        mode.lines.print("ready");
        mode.lines.print("replied", "whole", replied.await(60, TimeUnit.SECONDS));
        consumer.shutdown();
    }

    /** Nobody replies. */
    static void unanswered(Mode mode) throws Exception {
        // The time of a request has that of finding the way in it.
        mode.send(0, "before");
        try {
            mode.tell("reply", (MessageExt) mode.producer.request(mode.message("one"), 5000));
        } catch (RequestTimeoutException e) {
            mode.lines.print("unanswered", "why", e.getErrorMessage().replaceAll("[0-9]+ ms", "? ms"));
        }
    }
}
