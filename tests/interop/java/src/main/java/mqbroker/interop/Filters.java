package mqbroker.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.util.BloomFilter;

/**
 * Answers the questions in {@code --cases}, one JSON array a line in {@code --answers}.
 *
 * <p>{@code {"expression": text, "messages": [{name: value}]}}: "refused", or for each message "true", "false", "null" or "error".
 * {@code {"bloom": [error rate, consumers], "names": [text]}}: bits and hashes of the filter, then the bit positions of each name.
 */
final class Filters {
    private Filters() {
    }

    static void run(Options options, Lines lines) throws Exception {
        int count = 0;
        try (BufferedReader cases = Files.newBufferedReader(Path.of(options.required("cases")), StandardCharsets.UTF_8);
            PrintWriter answers = new PrintWriter(Files.newBufferedWriter(Path.of(options.required("answers")), StandardCharsets.UTF_8))) {
            for (String line = cases.readLine(); line != null; line = cases.readLine()) {
                JSONObject question = JSON.parseObject(line);
                answers.println((question.containsKey("bloom") ? bits(question) : outcomes(question)).toJSONString());
                count++;
            }
        }
        lines.print("answered", "count", count);
    }

    private static JSONArray outcomes(JSONObject question) {
        JSONArray found = new JSONArray();
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(question.getString("expression"));
        } catch (MQFilterException e) {
            found.add("refused");
            return found;
        }
        for (Object message : question.getJSONArray("messages")) {
            Map<String, String> properties = new HashMap<>();
            ((JSONObject) message).forEach((name, value) -> properties.put(name, (String) value));
            try {
                found.add(String.valueOf(expression.evaluate(new MessageEvaluationContext(properties))));
            } catch (Throwable e) {
                found.add("error");
            }
        }
        return found;
    }

    private static JSONArray bits(JSONObject question) {
        JSONArray shape = question.getJSONArray("bloom");
        BloomFilter bloom = BloomFilter.createByFn(shape.getIntValue(0), shape.getIntValue(1));
        JSONArray found = new JSONArray();
        found.add(bloom.getM());
        found.add(bloom.getK());
        for (Object name : question.getJSONArray("names")) {
            found.add(bloom.calcBitPositions((String) name));
        }
        return found;
    }
}
