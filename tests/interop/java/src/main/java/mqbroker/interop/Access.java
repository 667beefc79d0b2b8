package mqbroker.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Accounts against a broker that controls access: prints one line for each thing that was tried. Has a JVM of its own, for
 * whether connections are encrypted is a property of the whole JVM. Arguments: name server, broker.
 */
public final class Access {
    private static String namesrv;

    private Access() {
    }

    private static RPCHook account(String accessKey, String secretKey) {
        return new AclClientRPCHook(new SessionCredentials(accessKey, secretKey));
    }

    public static void main(String[] args) throws Exception {
        namesrv = args[0];
        RPCHook admin = account("the-admin", "secret-of-admin");
        RPCHook alice = account("alice-key", "secret-of-alice");
        createTopic("admin", admin, args[1], "T");
        createTopic("admin", admin, args[1], "Other");
        createTopic("alice", alice, args[1], "Mine");
        send("alice", alice, "T", 1);
        send("alice-batch", alice, "T", 3);
        send("alice-elsewhere", alice, "Other", 1);
        send("wrong-secret", account("alice-key", "secret-of-nobody"), "T", 1);
        send("unknown", account("nobody-key", "secret-of-nobody"), "T", 1);
        send("unsigned", null, "T", 1);
        System.out.println("consume alice " + consume(alice, 4));
        query("alice", alice, "T");
        query("wrong-secret", account("alice-key", "secret-of-nobody"), "T");
        query("alice-elsewhere", alice, "Other");
        System.exit(0);
    }

    private static void createTopic(String name, RPCHook hook, String broker, String topic) throws Exception {
        DefaultMQAdminExt tool = new DefaultMQAdminExt(hook);
        tool.setInstanceName("tool-" + name + topic);
        tool.setNamesrvAddr(namesrv);
        tool.start();
        String outcome = "done";
        try {
            tool.createAndUpdateTopicConfig(broker, new TopicConfig(topic, 4, 4, 6));
        } catch (Exception e) {
            outcome = reason(e);
        }
        System.out.println("create " + name + " " + outcome);
        tool.shutdown();
    }

    private static void send(String name, RPCHook hook, String topic, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("producers-" + name, hook);
        producer.setInstanceName(name);
        producer.setNamesrvAddr(namesrv);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        List<Message> messages = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            messages.add(new Message(topic, "", "key-of-" + name, new byte[] {(byte) n}));
        }
        String outcome;
        try {
            outcome = (count == 1 ? producer.send(messages.get(0)) : producer.send(messages)).getSendStatus().name();
        } catch (Exception e) {
            outcome = reason(e);
        }
        System.out.println("send " + name + " " + outcome);
        producer.shutdown();
    }

    /** Messages with the key of those that `send` sent; both codes by which a client asks for them. */
    private static void query(String name, RPCHook hook, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("queries-" + name, hook);
        producer.setInstanceName("query-" + name);
        producer.setNamesrvAddr(namesrv);
        producer.start();
        String outcome;
        try {
            MessageExt found = producer.queryMessage(topic, "key-of-alice", 32, 0, Long.MAX_VALUE).getMessageList().get(0);
            outcome = found.getKeys() + " " + producer.viewMessage(topic, found.getMsgId()).getKeys();
        } catch (MQClientException e) {
            outcome = "nothing";
        }
        System.out.println("query " + name + " " + outcome);
        producer.shutdown();
    }

    private static boolean consume(RPCHook hook, int count) throws Exception {
        CountDownLatch missing = new CountDownLatch(count);
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(null, "CG", hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("T", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> missing.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean whole = missing.await(30, TimeUnit.SECONDS);
        consumer.shutdown();
        return whole;
    }

    /** The broker's own words, without the place in its code that Java adds. */
    private static String reason(Throwable error) {
        for (Throwable each = error; each != null; each = each.getCause()) {
            String text = String.valueOf(each.getMessage());
            int at = text.indexOf("AclException: ");
            if (at >= 0) {
                return text.substring(at).split("[,\n]| BROKER")[0].trim();
            }
        }
        return String.valueOf(error);
    }
}
