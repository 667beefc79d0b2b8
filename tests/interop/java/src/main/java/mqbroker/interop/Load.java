package mqbroker.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** How fast a client sends and consumes; takes the orders of bench/client_load.py and blocking_load.py, and answers as those do. */
public final class Load {
    private static final long TIMEOUT_MS = 30_000;

    private final String nameServer;
    private final Lines lines = new Lines(System.out);
    private final DefaultMQProducer producer = new DefaultMQProducer("load-producers");
    private TransactionMQProducer transactions;
    private DefaultMQPushConsumer replying;
    private DefaultMQPushConsumer member;
    private final ConcurrentLinkedQueue<Integer> seen = new ConcurrentLinkedQueue<>();
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
            load.carryOut(order.split(" "));
        }
        System.exit(0);
    }

    private void carryOut(String[] words) throws Exception {
        String topic = words[1];
        int count = Integer.parseInt(words[2]);
        switch (words[0]) {
            case "send":
                send(topic, count, Integer.parseInt(words[3]), Integer.parseInt(words[4]));
                break;
            case "threads":
                threads(topic, count, Integer.parseInt(words[3]), Integer.parseInt(words[4]));
                break;
            case "request":
                request(topic, count, Integer.parseInt(words[3]), Integer.parseInt(words[4]));
                break;
            case "transact":
                transact(topic, count, Integer.parseInt(words[3]), Integer.parseInt(words[4]));
                break;
            case "consume":
                consume(topic, count, words[3]);
                break;
            case "join":
                join(topic, words[3], Integer.parseInt(words[4]));
                break;
            case "leave":
                begin();
                member.shutdown();
                end(0, 0, "seen", List.copyOf(seen));
                break;
            default:
                throw new IllegalArgumentException(words[0]);
        }
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

    private void threads(String topic, int count, int threads, int bytes) throws Exception {
        byte[] body = new byte[bytes];
        long[] took = new long[count / threads * threads];
        begin();
        int failed = onThreads(threads, count / threads, at -> {
            long since = System.nanoTime();
            producer.send(new Message(topic, body));
            took[at] = System.nanoTime() - since;
        });
        Arrays.sort(took);
        end(took.length, failed, "p50_us", took[took.length / 2] / 1e3);
    }

    private void request(String topic, int count, int threads, int bytes) throws Exception {
        byte[] body = new byte[bytes];
        if (replying == null) {
            replying = consumer(topic, topic + "-java-replies", (messages, context) -> {
                try {
                    for (MessageExt message : messages) {
                        producer.send(MessageUtil.createReplyMessage(message, "done".getBytes(StandardCharsets.UTF_8)));
                    }
                } catch (Exception e) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            replying.setConsumeThreadMax(threads);
            replying.setConsumeThreadMin(threads);
            replying.start();
        }
        begin();
        int each = count / threads;
        // On threads, as 4.9.7 calls a RequestCallback when the request is stored, and once more for the reply.
        int failed = onThreads(threads, each, at -> producer.request(new Message(topic, body), TIMEOUT_MS));
        end(each * threads, failed);
    }

    private void transact(String topic, int count, int threads, int bytes) throws Exception {
        byte[] body = new byte[bytes];
        if (transactions == null) {
            transactions = new TransactionMQProducer("load-transactions");
            transactions.setNamesrvAddr(nameServer);
            transactions.setTransactionListener(new TransactionListener() {
                @Override
                public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                    return LocalTransactionState.COMMIT_MESSAGE;
                }

                @Override
                public LocalTransactionState checkLocalTransaction(MessageExt message) {
                    return LocalTransactionState.COMMIT_MESSAGE;
                }
            });
            transactions.start();
        }
        begin();
        int each = count / threads;
        int failed = onThreads(threads, each, at -> transactions.sendMessageInTransaction(new Message(topic, body), null));
        end(each * threads, failed);
    }

    private void consume(String topic, int count, String group) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = consumer(topic, group, (messages, context) -> {
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

    private void join(String topic, String group, int tookMs) throws Exception {
        seen.clear();
        member = consumer(topic, group, (messages, context) -> {
            messages.forEach(m -> seen.add(Integer.valueOf(new String(m.getBody(), StandardCharsets.US_ASCII))));
            try {
                Thread.sleep(tookMs);
            } catch (InterruptedException e) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        member.setAwaitTerminationMillisWhenShutdown(10_000);
        begin();
        member.start();
        end(0, 0);
    }

    private DefaultMQPushConsumer consumer(String topic, String group, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(listener);
        return consumer;
    }

    /** A call for each number below {@code threads * each}; returns how many threads have failed. */
    private static int onThreads(int threads, int each, Call call) throws InterruptedException {
        AtomicInteger failed = new AtomicInteger();
        Thread[] running = new Thread[threads];
        for (int t = 0; t < threads; t++) {
            int first = t * each;
            running[t] = new Thread(() -> {
                try {
                    for (int i = 0; i < each; i++) {
                        call.at(first + i);
                    }
                } catch (Exception e) {
                    failed.incrementAndGet();
                }
            });
            running[t].start();
        }
        for (Thread thread : running) {
            thread.join();
        }
        return failed.get();
    }

    private interface Call {
        void at(int number) throws Exception;
    }

    private void begin() {
        began = System.nanoTime();
        beganCpu = cpu();
    }

    private void end(int count, int failed, Object... also) {
        double seconds = (System.nanoTime() - began) / 1e9;
        Object[] always = {"count", count, "failed", failed, "seconds", seconds, "cpu", (cpu() - beganCpu) / 1e9};
        Object[] all = Arrays.copyOf(always, always.length + also.length);
        System.arraycopy(also, 0, all, always.length, also.length);
        lines.print("load", all);
    }

    private static long cpu() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }
}
