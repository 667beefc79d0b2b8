"""Every command of the Java mqadmin, in an order that makes sense, and what of its output is compared.

A line is what a person would type; `{name}` stands for what a fleet has: see `Situation` in `test_mqadmin`.
"""

import re
from collections.abc import Callable

import attrs

from tests.config.test_load import OWN

Change = Callable[[str], str]


def sort_lines(text: str) -> str:
    """For what comes out of hash maps in any order."""
    return "\n".join(sorted(text.splitlines()))


def sort_entries(text: str) -> str:
    """For JSON of a hash map whose values are flat: its entries in order, each whole, then what stands around them."""
    entry = r'"[^"]+":\{[^{}]*\}'
    return "\n".join([*sorted(re.findall(entry, text)), re.sub(entry, "", text)])


def mask(pattern: str, by: str = "?") -> Change:
    """For values that cannot be the same."""
    return lambda text: re.sub(pattern, by, text, flags=re.MULTILINE)


def values_of(*keys: str) -> Change:
    """Of a list of `key : value` or `key = value`, mask what these keys have."""
    return mask(rf"^((?:{'|'.join(keys)})\s*[:=]).*$", r"\1 ?")


def without(pattern: str) -> Change:
    """Leave out the lines that match."""
    return lambda text: "\n".join(line for line in text.splitlines() if not re.search(pattern, line))


def until(line: str) -> Change:
    """Leave out this line and what comes behind it."""
    return lambda text: text.partition(line)[0]


@attrs.frozen
class Row:
    """One run of mqadmin. What is compared is the whole output after `changes`; `why` says why there are any."""

    line: str
    changes: tuple[Change, ...] = ()
    why: str = ""
    reads: str | None = None
    #: For a command without an end: it is interrupted behind so many lines.
    lines_until_interrupt: int | None = None
    #: So many messages must the online group have committed before, where the output shows what it has not.
    committed: int | None = None

    def changed(self, text: str) -> str:
        """What counts of an output."""
        for change in self.changes:
            text = change(text)
        return text

    @property
    def command(self) -> str:
        return self.line.split()[0]


def row(
    line: str,
    *changes: Change,
    why: str = "",
    reads: str | None = None,
    until: int | None = None,
    committed: int | None = None,
) -> Row:
    assert bool(changes) == bool(why), "what is not compared needs a reason"
    return Row(line, changes, why, reads, until, committed)


MAPS = "a map's order"

#: Runtime information, but for what must be the same.
_CERTAIN = "brokerVersion|commitLogMinOffset|dispatchBehind"
RUNTIME = mask(rf"^((?:<addr> +)?(?!{_CERTAIN})\w+?)(?:<.*?)? *:.*$", r"\1: ?")
#: Objects of the client, and times in digits.
OBJECTS = mask(r"@[0-9a-f]+|\$\$Lambda\S+|\b\d{14,17}\b")
RUNNING = (OBJECTS, until("#Consumer RT&TPS#"))
OF_THE_CLIENT = "the client's objects, rates and threads"
_OURS = "|".join(map(re.escape, sorted(OWN)))
#: Java's settings of Netty and of its own home, and ours.
NAMESRV_OWN = (
    "^(writeBuffer|server(Worker|Selector|Callback)|clusterTest|rocketmqHome|productEnvName|useEpoll|serverPooled"
    rf"|configStorePath|namesrvAddr|{_OURS})"
)
#: Our own settings; one that Java shows as it was given (99 % is 95 %), one as it computed it (bits of a filter), one
#: that has another default (places of delayed messages are written more often).
BROKER_OWN = rf"^({_OURS}|diskMaxUsedSpaceRatio|bitMapLengthConsumeQueueExt|flushDelayOffsetInterval)\b"
OURS_ALONE = "what only ours has, or has settled, and " + MAPS
SECRETS = mask(r"(secretKey +:).*", r"\1 ?")
#: Messages that the rows above `statsAll` sent to {topic}, and the eleven that were there.
SENT = 11 + 1 + 1 + 4
#: Messages a second of the last minute, messages of the last day.
RATES = mask(r" +[\d.]+ +[\d.]+ +\d+ +\d+$| +[\d.]+ +\d+(?= +NO_CONSUMER)")

TABLE = [
    # Topics
    row("updateTopic -b {addr} -t Made -r 3 -w 3 -p 6"),
    row("updateTopic -c Interop -t MadeOrdered -r 4 -w 4 -o true"),
    row("updateTopic -b {addr} -t MadeUnit -u true -s true"),
    row("updateTopic -b {addr} -t TBW102"),
    row("updateTopic -b {addr} -t bad!name"),
    row("updateTopicPerm -b {addr} -t Made -p 4"),
    row("updateTopicPerm -c Interop -t Made -p 6"),
    row("updateTopicPerm -b {addr} -t Nobody -p 6"),
    row("topicRoute -t {topic}"),
    row("topicRoute -t {topic} -l"),
    row("topicRoute -t MadeOrdered"),
    row("topicRoute -t MadeUnit"),
    row("topicRoute -t Made"),
    row("topicRoute -t Nobody"),
    row("topicStatus -t {topic}"),
    row("topicStatus -t Nobody"),
    row("topicClusterList -t {topic}"),
    row("topicList", sort_lines, why=MAPS),
    row("topicList -c", sort_lines, why=MAPS),
    row("allocateMQ -t {topic} -i one,two,three"),
    row("updateOrderConf -t {topic} -m put -v broker-a:2"),
    row("updateOrderConf -t {topic} -m get"),
    row("updateOrderConf -t {topic} -m delete"),
    row("updateOrderConf -t {topic} -m get"),
    # Groups
    row("updateSubGroup -b {addr} -g Made -s true -m false -d true -q 2 -r 5 -i 0 -w 1 -a true"),
    row("updateSubGroup -c Interop -g MadeToo"),
    row("getConsumerConfig -g Made"),
    row("getConsumerConfig -g {group}"),
    row("getConsumerConfig -g Nobody"),
    row("consumerConnection -g {group}", sort_lines, why=MAPS),
    row("consumerConnection -g {group} -b {addr}", sort_lines, why=MAPS),
    row("consumerConnection -g Nobody"),
    row("producerConnection -g {producers} -t {topic}"),
    row("producerConnection -g Nobody -t {topic}"),
    row("producer -b {addr}", sort_lines, why=MAPS),
    row("consumerProgress -g {group}", mask("TPS: .*"), why="a rate"),
    row("consumerProgress -g {group} -s true", mask("TPS: .*"), why="a rate"),
    row("consumerProgress", mask(r"(CLUSTERING +)\d+", r"\1?"), sort_lines, why="a rate, and " + MAPS),
    row("consumerProgress -g Nobody"),
    row("consumerStatus -g {group}", mask(r"\d{13}/"), why="a folder named by the time"),
    row("consumerStatus -g {group} -i {client_id}", *RUNNING, why=OF_THE_CLIENT),
    row("consumerStatus -g {group} -i {client_id} -s", *RUNNING, why=OF_THE_CLIENT),
    row("consumerStatus -g {group} -i nobody"),
    row("cloneGroupOffset -s {group} -d Cloned -t {topic}"),
    row("consumerProgress -g Cloned"),
    row("resetOffsetByTime -g Cloned -t {topic} -s 1000", sort_lines, why=MAPS),
    row("consumerProgress -g Cloned"),
    row("skipAccumulatedMessage -g Cloned -t {topic}", sort_lines, why=MAPS),
    row("consumerProgress -g Cloned"),
    row("brokerConsumeStats -b {addr}", sort_lines, why=MAPS),
    row("brokerConsumeStats -b {addr} -l 1 -t 3000 -o false", sort_lines, why=MAPS),
    # Messages
    row("queryMsgById -i {offset_id}"),
    row("queryMsgById -i {offset_id} -g {group} -d {client_id}", mask(r"Mills=\d+"), why="times"),
    row("queryMsgById -i {offset_id} -g {group} -d nobody"),
    row("queryMsgById -i 7F00000100002A9F00000000000F0000"),
    row("queryMsgByKey -t {topic} -k message-3"),
    row("queryMsgByKey -t {topic} -k nothing"),
    row("queryMsgByUniqueKey -t {topic} -i {unique_id}"),
    row("queryMsgByUniqueKey -t {topic} -i {unique_id} -a"),
    row("queryMsgByUniqueKey -t {topic} -i {unique_id} -g {group} -d {client_id}", mask(r"Mills=\d+"), why="times"),
    row("queryMsgByOffset -t {topic} -b broker-a -i 0 -o 2"),
    row("queryMsgByOffset -t {topic} -b broker-a -i 0 -o 99"),
    row("queryMsgTraceById -i {traced_id}"),
    row("printMsg -t {topic} -d true"),
    row("printMsg -t {topic} -s A"),
    row("printMsgByQueue -t {topic} -a broker-a -i 0 -p true -d true -f true"),
    row("queryCq -t {topic} -q 0 -i 1 -c 3 -b {addr}"),
    row("queryCq -t {topic} -q 0 -i 0 -c 2 -g {group}"),
    row("queryCq -t {topic} -q 9 -i 0 -c 2 -b {addr}"),
    row("queryCq -t Nobody -q 0 -i 0 -c 2 -b {addr}"),
    row("consumeMessage -t {topic} -b broker-a -i 0 -o 1 -c 2"),
    row("consumeMessage -t {topic} -b broker-a -i 1"),
    row("sendMessage -t {topic} -p hello -k key-1 -c A -b broker-a -i 1"),
    row("sendMessage -t {topic} -p traced -b broker-a -i 1 -m true"),
    row("sendMsgStatus -b broker-a -s 100 -c 2", mask(r"queue(Id|Offset)=\d+"), why="any queue"),
    row("checkMsgSendRT -t {topic} -a 4 -s 10", mask(r"(true|false)\s+\d+$", r"\1"), mask(r"[\d.]+$"), why="times"),
    row("clusterRT -a 2 -s 10 -i 60 -c Interop", mask(r"\d+\.\d\d"), why="times", until=2),
    row("clusterRT -a 2 -s 10 -i 60 -p true -m room", mask(r"\|\d+$"), why="times", until=1),
    row("statsAll -t {topic}", RATES, why="what was sampled so far", committed=SENT),
    row("statsAll", RATES, sort_lines, why="what was sampled so far, and " + MAPS),
    row("statsAll -a", until("\n"), why="what was sampled so far decides which topics are active"),
    # Online groups are reset last: their consumer starts over, sooner or later
    row("resetOffsetByTime -g {group} -t {topic} -s 1000", sort_lines, why=MAPS),
    row("skipAccumulatedMessage -g {group} -t {topic}", sort_lines, why=MAPS),
    row("resetOffsetByTime -g {group} -t Nobody -s now"),
    # Broker and cluster
    row("clusterList", mask(r"(?<=V4_9_7).*$"), why="rates"),
    row("clusterList -m", mask(r"\d+ +\d+$"), why="traces sent late, and what was read after the resets"),
    row("brokerStatus -b {addr}", RUNTIME, why="rates, times, and sizes of pools; which keys there are counts"),
    row("brokerStatus -c Interop", RUNTIME, why="rates, times, and sizes of pools; which keys there are counts"),
    row("updateBrokerConfig -b {addr} -k fileReservedTime -v 71"),
    row("updateBrokerConfig -c Interop -k longPollingEnable -v true"),
    row("getBrokerConfig -b {addr}", without(BROKER_OWN), sort_lines, why=OURS_ALONE),
    row("getBrokerConfig -c Interop", without(BROKER_OWN), sort_lines, why=OURS_ALONE),
    row("cleanExpiredCQ -b {addr}"),
    row("cleanExpiredCQ -c Interop"),
    row("deleteExpiredCommitLog -b {addr}"),
    row("deleteExpiredCommitLog -c Interop"),
    row("cleanUnusedTopic -b {addr}"),
    row("cleanUnusedTopic -c Interop"),
    row("exportMetadata -c Interop -f {scratch}", reads="metadata.json"),
    row("exportMetadata -b {addr} -t -s -f {scratch}", sort_entries, why=MAPS, reads="topic.json"),
    row("exportMetadata -b {addr} -g -f {scratch}", reads="subscriptionGroup.json"),
    row("exportConfigs -c Interop -f {scratch}", reads="configs.json"),
    row("exportMetrics -c Interop -f {scratch}",
        mask(r"\d+\.\d+"), why="rates", reads="metrics.json"),
    # Access
    row("clusterAclConfigVersion -b {addr}"),
    row("updateAclConfig -b {addr} -a made-key -s made-secret -w 10.0.0.* -i DENY -u SUB -t T1=PUB,T2=SUB -g G1=SUB "
        "-m false", mask("@.*"), why="an object of the client"),
    row("updateAclConfig -c Interop -a other-key -s other-secret", mask("@.*"), why="an object of the client"),
    row("getAclConfig -b {addr}", SECRETS, why="ours tells no secrets"),
    row("deleteAclConfig -b {addr} -a made-key"),
    row("deleteAclConfig -b {addr} -a nobody"),
    row("updateGlobalWhiteAddr -b {addr} -g 127.0.0.1,10.1.1.*"),
    row("getAclConfig -c Interop", SECRETS, why="ours tells no secrets"),
    row("clusterAclConfigVersion -c Interop"),
    # Name server
    row("updateKvConfig -s SPACE -k key -v value"),
    row("deleteKvConfig -s SPACE -k key"),
    row("deleteKvConfig -s SPACE -k nobody"),
    row("wipeWritePerm -b broker-a"),
    row("topicRoute -t {topic}"),
    row("addWritePerm -b broker-a"),
    row("topicRoute -t {topic}"),
    row("wipeWritePerm -b nobody"),
    row("getNamesrvConfig", without(NAMESRV_OWN), sort_lines, why="what only one of the two has, and "+MAPS),
    row("updateNamesrvConfig -k orderMessageEnable -v true"),
    row("getNamesrvConfig", without(NAMESRV_OWN), sort_lines, why="what only one of the two has, and "+MAPS),
    # The end of things
    row("deleteSubGroup -b {addr} -g Made -r true"),
    row("getConsumerConfig -g Made"),
    row("deleteSubGroup -c Interop -g MadeToo"),
    row("deleteTopic -c Interop -t MadeOrdered"),
    row("topicRoute -t MadeOrdered"),
    row("deleteTopic -c Interop -t Nobody"),
    row("queryMsgById -i {offset_id} -s true", mask(r"queue(Id|Offset)=\d+"), why="any queue"),
    row("startMonitoring"),
]  # fmt: skip
