package mqbroker.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/** Reads cases from the file {@code --cases}, one JSON object a line, and writes what each member gets to {@code --results}. */
final class Allocate {
    private Allocate() {
    }

    static void run(Options options, Lines lines) throws Exception {
        List<String> results = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(options.required("cases")), StandardCharsets.UTF_8)) {
            results.add(JSON.toJSONString(shares(JSON.parseObject(line))));
        }
        Files.write(Path.of(options.required("results")), results, StandardCharsets.UTF_8);
        lines.print("done");
    }

    private static List<List<String>> shares(JSONObject one) {
        List<MessageQueue> queues = queues(one.getJSONArray("queues"));
        List<String> members = one.getJSONArray("members").toJavaList(String.class);
        // As RebalanceImpl does before it asks a strategy.
        Collections.sort(queues);
        Collections.sort(members);
        AllocateMessageQueueStrategy strategy = strategy(one, one.getString("strategy"));
        List<List<String>> shares = new ArrayList<>();
        for (String me : members) {
            List<String> share = new ArrayList<>();
            strategy.allocate("g", me, queues, members).forEach(q -> share.add(q.getBrokerName() + " " + q.getQueueId()));
            Collections.sort(share);
            shares.add(share);
        }
        return shares;
    }

    private static AllocateMessageQueueStrategy strategy(JSONObject one, String name) {
        switch (name) {
            case "averagely":
                return new AllocateMessageQueueAveragely();
            case "circle":
                return new AllocateMessageQueueAveragelyByCircle();
            case "hash":
                return new AllocateMessageQueueConsistentHash(one.getIntValue("nodes"));
            case "room":
                AllocateMessageQueueByMachineRoom room = new AllocateMessageQueueByMachineRoom();
                room.setConsumeridcs(new HashSet<>(one.getJSONArray("rooms").toJavaList(String.class)));
                return room;
            case "config":
                AllocateMessageQueueByConfig config = new AllocateMessageQueueByConfig();
                config.setMessageQueueList(queues(one.getJSONArray("configured")));
                return config;
            case "nearby":
                return new AllocateMachineRoomNearby(strategy(one, one.getString("inner")),
                    new AllocateMachineRoomNearby.MachineRoomResolver() {
                        @Override
                        public String brokerDeployIn(MessageQueue queue) {
                            return queue.getBrokerName().split("@")[0];
                        }

                        @Override
                        public String consumerDeployIn(String clientId) {
                            return clientId.split("@")[0];
                        }
                    });
            default:
                throw new IllegalArgumentException(name);
        }
    }

    private static List<MessageQueue> queues(JSONArray names) {
        List<MessageQueue> queues = new ArrayList<>();
        for (int i = 0; i < names.size(); i++) {
            JSONArray each = names.getJSONArray(i);
            queues.add(new MessageQueue(each.getString(0), each.getString(1), each.getIntValue(2)));
        }
        return queues;
    }
}
