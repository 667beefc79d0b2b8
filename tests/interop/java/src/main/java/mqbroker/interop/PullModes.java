package mqbroker.interop;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.TreeSet;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Clients that ask by themselves: the old and the new pull consumer, and queries. */
final class PullModes {
    private PullModes() {
    }

    /** Every outcome of a pull, and offsets that the client keeps on the broker. */
    @SuppressWarnings("deprecation")
    static void pull(Mode mode) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(mode.group);
        consumer.setNamesrvAddr(mode.namesrv);
        consumer.start();
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(mode.topic).iterator().next();
        tell(mode, "empty", consumer.pull(queue, "*", 0, 32));
        for (String tag : new String[] {"A", "B", "A"}) {
            Message message = mode.message("tag " + tag);
            message.setTags(tag);
            mode.send(0, message);
        }
        tell(mode, "all", consumer.pull(queue, "*", 0, 32));
        tell(mode, "two", consumer.pull(queue, "*", 0, 2));
        tell(mode, "B", consumer.pull(queue, "B", 0, 32));
        tell(mode, "none", consumer.pull(queue, "C", 0, 32));
        tell(mode, "at the end", consumer.pull(queue, "*", 3, 32));
        tell(mode, "beyond", consumer.pull(queue, "*", 9, 32));
        mode.lines.print("offset", "committed", consumer.fetchConsumeOffset(queue, true));
        consumer.updateConsumeOffset(queue, 2);
        // One way.
        consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
        long committed = 0;
        for (long end = System.currentTimeMillis() + 20_000; committed == 0 && System.currentTimeMillis() < end; Thread.sleep(5)) {
            committed = mode.admin.examineConsumeStats(mode.group, mode.topic).getOffsetTable().get(queue).getConsumerOffset();
        }
        mode.lines.print("offset", "committed", committed);
        Thread sender = new Thread(() -> {
            try {
                mode.send(0, "woken");
            } catch (Exception e) {
                mode.lines.print("error", "error", e.toString());
            }
        });
        sender.start();
        tell(mode, "waited", consumer.pullBlockIfNotFound(queue, "*", 3, 32));
        sender.join();
        consumer.sendMessageBack(consumer.pull(queue, "*", 0, 1).getMsgFoundList().get(0), 1);
        mode.lines.print("sent back");
        consumer.shutdown();
    }

    /** The lite pull consumer with queues that it is given: seek, pause, commit, offsets by time. */
    static void assign(Mode mode) throws Exception {
        mode.send(0, "0-0", "0-1", "0-2", "0-3");
        mode.send(1, "1-0", "1-1");
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(mode.group);
        consumer.setNamesrvAddr(mode.namesrv);
        consumer.setAutoCommit(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.start();
        List<MessageQueue> queues = new ArrayList<>(new TreeSet<>(consumer.fetchMessageQueues(mode.topic)));
        MessageQueue first = queues.get(0);
        consumer.assign(queues);
        mode.lines.print("assigned", "came", poll(consumer, 6));
        consumer.seek(first, 2);
        mode.lines.print("seek 2", "came", poll(consumer, 2));
        consumer.seekToBegin(first);
        mode.lines.print("seek to begin", "came", poll(consumer, 4));
        consumer.seekToEnd(first);
        mode.send(0, "0-4");
        mode.lines.print("seek to end", "came", poll(consumer, 1));
        mode.lines.print("committed before", "offset", consumer.committed(first));
        consumer.commitSync();
        mode.lines.print("committed", "offset", consumer.committed(first));
        mode.lines.print("by time", "offset", consumer.offsetForTimestamp(first, 1000L));
        consumer.pause(Collections.singletonList(first));
        mode.send(0, "0-5");
        mode.send(1, "1-2");
        consumer.resume(Collections.singletonList(first));
        mode.lines.print("resumed", "came", poll(consumer, 2));
        try {
            consumer.seek(first, 99);
        } catch (Exception e) {
            mode.lines.print("seek 99", "why", e.getMessage().replaceAll("\\[.*?brokerName=[^,]*", "["));
        }
        consumer.shutdown();
    }

    /** The lite pull consumer in a group, with tags; a second one goes on where it was. */
    static void subscribe(Mode mode) throws Exception {
        for (int i = 0; i < 6; i++) {
            Message message = mode.message("message " + i);
            message.setTags("AB".substring(i % 2, i % 2 + 1));
            mode.send(i % 2, message);
        }
        for (String name : new String[] {"first", "second"}) {
            DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(mode.group);
            consumer.setNamesrvAddr(mode.namesrv);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(mode.topic, "A");
            consumer.start();
            mode.lines.print(name, "came", poll(consumer, name.equals("first") ? 3 : 1));
            consumer.commitSync();
            consumer.shutdown();
            Message message = mode.message("later");
            message.setTags("A");
            mode.send(0, message);
        }
    }

    /** By key, by both kinds of id, by time. */
    @SuppressWarnings("deprecation")
    static void query(Mode mode) throws Exception {
        long before = System.currentTimeMillis();
        SendResult result = null;
        for (int i = 0; i < 4; i++) {
            Message message = mode.message("message " + i);
            message.setKeys(i < 3 ? "common key-" + i : "other");
            result = mode.send(0, message);
        }
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(mode.group);
        consumer.setNamesrvAddr(mode.namesrv);
        consumer.start();
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(mode.topic).iterator().next();
        // The index is written behind the answer.
        byKey(mode, consumer, "other", 32, before - 1000, Long.MAX_VALUE, 1);
        byKey(mode, consumer, "common", 32, before - 1000, Long.MAX_VALUE, 3);
        byKey(mode, consumer, "common", 2, before - 1000, Long.MAX_VALUE, 2);
        byKey(mode, consumer, "key-1", 32, 0, Long.MAX_VALUE, 1);
        byKey(mode, consumer, "common", 32, 1, 1000, 0);
        byKey(mode, consumer, "nothing", 32, 0, Long.MAX_VALUE, 0);
        mode.tell("by offset id", consumer.viewMessage(result.getOffsetMsgId()));
        mode.tell("by unique id", consumer.viewMessage(mode.topic, result.getMsgId()));
        try {
            consumer.viewMessage(mode.topic, "0123456789ABCDEF0123456789ABCDEF");
        } catch (Exception e) {
            mode.lines.print("no such id", "why", e.toString().replaceAll("[0-9]+[.][0-9.:]+", "?"));
        }
        MessageExt last = consumer.viewMessage(result.getOffsetMsgId());
        mode.lines.print("by time", "first", consumer.searchOffset(queue, before - 1000),
            "beyond", consumer.searchOffset(queue, last.getStoreTimestamp() + 60_000),
            "earliest", consumer.earliestMsgStoreTime(queue) >= before,
            "min", consumer.minOffset(queue), "max", consumer.maxOffset(queue));
        consumer.shutdown();
    }

    @SuppressWarnings("deprecation")
    private static void byKey(Mode mode, DefaultMQPullConsumer consumer, String key, int max, long from, long until, int wanted)
        throws Exception {
        String found = "";
        for (long end = System.currentTimeMillis() + 20_000; System.currentTimeMillis() < end;) {
            try {
                QueryResult result = consumer.queryMessage(mode.topic, key, max, from, until);
                found = new TreeSet<>(Mode.texts(result.getMessageList())).toString();
                if (result.getMessageList().size() >= wanted) {
                    break;
                }
            } catch (org.apache.rocketmq.client.exception.MQClientException e) {
                found = String.valueOf(e.getErrorMessage());
                if (wanted == 0) {
                    break;
                }
            }
            Thread.sleep(50);
        }
        mode.lines.print("by key", "key", key, "max", max, "found", found);
    }

    static void tell(Mode mode, String what, PullResult result) {
        List<MessageExt> found = result.getMsgFoundList();
        mode.lines.print("pull", "what", what, "status", result.getPullStatus().name(), "next", result.getNextBeginOffset(),
            "min", result.getMinOffset(), "max", result.getMaxOffset(), "found", found == null ? "" : Mode.texts(found));
    }

    /** So many messages, sorted by their texts; fewer where no more come. */
    static List<String> poll(DefaultLitePullConsumer consumer, int count) {
        List<String> came = new ArrayList<>();
        for (long end = System.currentTimeMillis() + 40_000; came.size() < count && System.currentTimeMillis() < end;) {
            Collection<MessageExt> messages = consumer.poll(1000);
            messages.forEach(message -> came.add(Mode.text(message)));
        }
        Collections.sort(came);
        return came;
    }
}
