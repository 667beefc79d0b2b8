package mqbroker.interop;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What push consumers meet: messages again, dead letters, waiting queues, late messages, traces. */
final class PushModes {
    private static final long PATIENCE_S = 40;

    private PushModes() {
    }

    /** Two of three messages are refused once, and come again. */
    static void retry(Mode mode) throws Exception {
        BlockingQueue<MessageExt> heard = new LinkedBlockingQueue<>();
        DefaultMQPushConsumer consumer = mode.consumer();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            heard.add(message);
            boolean refuse = message.getReconsumeTimes() == 0 && !Mode.text(message).equals("good");
            context.setDelayLevelWhenNextConsume(1);
            return refuse ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        mode.send(0, "bad", "good");
        consumer.start();
        tellSorted(mode, heard, 3);
        mode.send(0, "also bad");
        tellSorted(mode, heard, 2);
        consumer.shutdown();
    }

    /** A message is refused until it is a dead letter. */
    static void deadLetter(Mode mode) throws Exception {
        BlockingQueue<MessageExt> heard = new LinkedBlockingQueue<>();
        DefaultMQPushConsumer consumer = mode.consumer();
        consumer.setMaxReconsumeTimes(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            heard.add(messages.get(0));
            context.setDelayLevelWhenNextConsume(1);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        mode.send(0, "bad");
        consumer.start();
        tellSorted(mode, heard, 2);
        mode.tell("dead", first(mode, "%DLQ%" + mode.group));
        consumer.shutdown();
    }

    /** An orderly listener has its queue wait, twice; what is behind waits too. */
    static void suspend(Mode mode) throws Exception {
        List<String> told = new ArrayList<>();
        CountDownLatch end = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = mode.consumer();
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            MessageExt message = messages.get(0);
            told.add(Mode.text(message) + " " + message.getReconsumeTimes());
            if (Mode.text(message).equals("two") && message.getReconsumeTimes() < 2) {
                context.setSuspendCurrentQueueTimeMillis(100);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            if (Mode.text(message).equals("four")) {
                end.countDown();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        mode.send(0, "one", "two", "three", "four");
        consumer.start();
        mode.lines.print("order", "whole", end.await(PATIENCE_S, TimeUnit.SECONDS), "told", told);
        consumer.shutdown();
    }

    /** An orderly listener refuses beyond its maximum: the queue goes on without the message. */
    static void orderlyGiveUp(Mode mode) throws Exception {
        List<String> told = new ArrayList<>();
        CountDownLatch end = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = mode.consumer();
        consumer.setMaxReconsumeTimes(1);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            MessageExt message = messages.get(0);
            told.add(Mode.text(message) + " " + message.getReconsumeTimes());
            if (Mode.text(message).equals("bad")) {
                context.setSuspendCurrentQueueTimeMillis(100);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            end.countDown();
            return ConsumeOrderlyStatus.SUCCESS;
        });
        mode.send(0, "bad", "good");
        consumer.start();
        mode.lines.print("order", "whole", end.await(PATIENCE_S, TimeUnit.SECONDS), "told", told);
        consumer.shutdown();
    }

    /** Messages of level 1 come a second later, behind those without a delay. */
    static void delay(Mode mode) throws Exception {
        BlockingQueue<MessageExt> heard = new LinkedBlockingQueue<>();
        DefaultMQPushConsumer consumer = mode.consumer();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            heard.add(messages.get(0));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        for (String body : new String[] {"late", "too late"}) {
            Message message = mode.message(body);
            message.setDelayTimeLevel(1);
            message.setTags("A");
            message.setKeys("key");
            mode.lines.print("sent", "status", mode.producer.send(message).getSendStatus().name());
        }
        mode.send(0, "at once");
        List<MessageExt> came = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            came.add(heard.poll(PATIENCE_S, TimeUnit.SECONDS));
        }
        // What came with one pull is heard in any order; that the late came later their store times say.
        came.sort(Comparator.comparing(MessageExt::getQueueOffset));
        for (MessageExt message : came) {
            mode.tell("came", message);
            long waited = message.getStoreTimestamp() - message.getBornTimestamp();
            mode.lines.print("waited", "body", Mode.text(message), "a second or more", waited >= 1000);
        }
        consumer.shutdown();
    }

    /** What a producer and a consumer tell of a message in the trace topic. */
    static void trace(Mode mode) throws Exception {
        CountDownLatch consumed = new CountDownLatch(2);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(mode.group, true, mode.traces);
        consumer.setNamesrvAddr(mode.namesrv);
        consumer.subscribe(mode.topic, "*");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(m -> consumed.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        mode.send(0, "one", "two");
        consumer.start();
        mode.lines.print("consumed", "whole", consumed.await(PATIENCE_S, TimeUnit.SECONDS));
        TreeMap<String, Integer> kinds = new TreeMap<>();
        DefaultMQPullConsumer reader = reader(mode);
        MessageQueue queue = reader.fetchSubscribeMessageQueues(mode.traces).iterator().next();
        long offset = 0;
        for (long end = System.currentTimeMillis() + PATIENCE_S * 1000; total(kinds) < 6 && System.currentTimeMillis() < end;) {
            PullResult result = reader.pullBlockIfNotFound(queue, "*", offset, 32);
            offset = result.getNextBeginOffset();
            if (result.getPullStatus() == PullStatus.FOUND) {
                result.getMsgFoundList().forEach(m -> count(Mode.text(m), kinds));
            }
        }
        mode.lines.print("traces", "kinds", kinds);
        reader.shutdown();
        consumer.shutdown();
    }

    private static void count(String traces, TreeMap<String, Integer> kinds) {
        for (String trace : traces.split("\u0002")) {
            kinds.merge(trace.split("\u0001")[0], 1, Integer::sum);
        }
    }

    private static int total(TreeMap<String, Integer> kinds) {
        return kinds.values().stream().mapToInt(Integer::intValue).sum();
    }

    /** The first message of a topic with one queue, waiting for it. */
    private static MessageExt first(Mode mode, String topic) throws Exception {
        DefaultMQPullConsumer reader = reader(mode);
        MessageQueue queue = reader.fetchSubscribeMessageQueues(topic).iterator().next();
        PullResult result = reader.pullBlockIfNotFound(queue, "*", 0, 1);
        reader.shutdown();
        return result.getMsgFoundList().get(0);
    }

    @SuppressWarnings("deprecation")
    private static DefaultMQPullConsumer reader(Mode mode) throws Exception {
        DefaultMQPullConsumer reader = new DefaultMQPullConsumer(mode.topic + "-reader");
        reader.setNamesrvAddr(mode.namesrv);
        reader.start();
        return reader;
    }

    private static void tellSorted(Mode mode, BlockingQueue<MessageExt> heard, int count) throws Exception {
        List<MessageExt> messages = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            MessageExt message = heard.poll(PATIENCE_S, TimeUnit.SECONDS);
            if (message == null) {
                throw new IllegalStateException(i + " of " + count + " messages came");
            }
            messages.add(message);
        }
        messages.sort((a, b) -> (Mode.text(a) + a.getReconsumeTimes()).compareTo(Mode.text(b) + b.getReconsumeTimes()));
        messages.forEach(message -> mode.tell("came", message));
    }
}
