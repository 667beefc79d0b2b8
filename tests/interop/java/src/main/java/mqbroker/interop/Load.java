package mqbroker.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** How fast a client sends and consumes; takes the orders of bench/client_load.py, and answers as that does. */
public final class Load {
    private final String nameServer;
    private final Lines lines = new Lines(System.out);
    private final DefaultMQProducer producer = new DefaultMQProducer("load-producers");
    private long began;
    private long beganCpu;

    private Load(String nameServer) throws Exception {
        this.nameServer = nameServer;
        producer.setNamesrvAddr(nameServer);
        producer.start();
    }

    public static void main(String[] args) throws Exception {
        Load load = new Load(args[0]);
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            String[] words = order.split(" ");
            if (words[0].equals("send")) {
                load.send(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]), Integer.parseInt(words[4]));
            } else {
                load.consume(words[1], words[2], Integer.parseInt(words[3]));
            }
        }
        System.exit(0);
    }

    private void send(String topic, int count, int inFlight, int bytes) throws Exception {
        byte[] body = new byte[bytes];
        Semaphore room = new Semaphore(inFlight);
        AtomicInteger failed = new AtomicInteger();
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                room.release();
            }

            @Override
            public void onException(Throwable error) {
                failed.incrementAndGet();
                room.release();
            }
        };
        begin();
        for (int i = 0; i < count; i++) {
            room.acquire();
            producer.send(new Message(topic, body), callback);
        }
        room.acquire(inFlight);
        end(count, failed.get());
    }

    private void consume(String topic, String group, int count) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (int i = 0; i < messages.size(); i++) {
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        begin();
        consumer.start();
        left.await();
        end(count, 0);
        consumer.shutdown();
    }

    private void begin() {
        began = System.nanoTime();
        beganCpu = cpu();
    }

    private void end(int count, int failed) {
        double seconds = (System.nanoTime() - began) / 1e9;
        lines.print("load", "count", count, "failed", failed, "seconds", seconds, "cpu", (cpu() - beganCpu) / 1e9);
    }

    private static long cpu() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }
}
