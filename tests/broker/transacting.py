"""A producer of transactions, as tests drive it: half messages, their ends, and what it is asked."""

from __future__ import annotations

from typing import Any

from mqbroker.wire.bodies import HeartbeatData, ProducerData
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import CheckTransactionStateRequestHeader, EndTransactionRequestHeader, decode_header
from mqbroker.wire.record import Record, decode_record
from tests.broker.bench import Bench, Client, send_command

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
GROUP = "CID_RMQ_SYS_TRANS"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


class Half:
    """A half message as its producer knows it: the answer to its send."""

    def __init__(self, offset: int, physical_offset: int, msg_id: str) -> None:
        self.offset, self.physical_offset, self.msg_id = offset, physical_offset, msg_id


class Transactor:
    """One client of the producer group PG."""

    def __init__(self, bench: Bench, client: Client | None = None) -> None:
        self.bench = bench
        self.client = client or bench.client()

    def beat(self, group: str = "PG") -> None:
        body = HeartbeatData("client@1", [ProducerData(group)], []).to_json()
        assert self.client.ask(RequestCode.HEART_BEAT, body=body).code == 0

    def half(self, body: bytes = b"body", topic: str = "T", queue_id: int = 1, **more: Any) -> Half:
        properties = {"UNIQ_KEY": body.decode(), "TRAN_MSG": "true", "PGROUP": "PG", **more.pop("properties", {})}
        text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
        born = int(self.bench.clock.seconds() * 1000)
        fields = {"queue_id": queue_id, "sys_flag": 4, "born_timestamp": born, "properties": text, **more}
        (answer,) = self.client.ask_all(send_command(topic, body, **fields))
        assert answer.code == 0, answer.remark
        msg_id = answer.ext_fields["msgId"]
        return Half(int(answer.ext_fields["queueOffset"]), int(msg_id[-16:], 16), msg_id)

    def end(self, half: Half, outcome: int, **fields: bool) -> RemotingCommand:
        return self.client.ask(RequestCode.END_TRANSACTION, end_header(half, outcome, **fields))

    def commit(self, half: Half, **fields: Any) -> RemotingCommand:
        return self.end(half, COMMIT, **fields)

    def asked(self) -> list[tuple[CheckTransactionStateRequestHeader, Record]]:
        """(header, record) of each question since the last time."""
        questions = [each for each in self.client.heard() if each.code == RequestCode.CHECK_TRANSACTION_STATE]
        return [
            (decode_header(CheckTransactionStateRequestHeader, each.ext_fields), decode_record(each.body))
            for each in questions
        ]


def end_header(half: Half, outcome: int, **fields: bool) -> EndTransactionRequestHeader:
    return EndTransactionRequestHeader(
        **dict[str, Any](
            {
                "producer_group": "PG",
                "tran_state_table_offset": half.offset,
                "commit_log_offset": half.physical_offset,
                "commit_or_rollback": outcome,
                "from_transaction_check": False,
                "msg_id": "ABC",
                **fields,
            }
        )
    )


def end_command(half: Half, outcome: int, **fields: Any) -> RemotingCommand:
    return RemotingCommand.request(RequestCode.END_TRANSACTION, end_header(half, outcome, **fields))


def answered(header: CheckTransactionStateRequestHeader) -> Half:
    """The half message that a question is about, to be ended."""
    return Half(header.tran_state_table_offset, header.commit_log_offset, header.offset_msg_id)


def bodies(bench: Bench, topic: str, queue_id: int = 0) -> list[bytes]:
    return [record.body for record in bench.records(topic, queue_id)]


def round_of_checks(bench: Bench, seconds: int = 60) -> None:
    """Let the checks' next round come."""
    bench.turn(seconds)
    for _ in range(40):
        bench.turn()
