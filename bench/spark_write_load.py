"""Writes rows as a task of Spark does, and the same messages by a loop of `send_batch`, in turns: python -m
bench.spark_write_load NAME_SERVER ROUNDS ROWS. With a TOPIC after that, it fills that topic instead.

Prints a line of JSON for each: what it was, rows, and seconds of this process's CPU. Spark itself has no part in it.
"""

import json
import sys
import time
from typing import Any

import pyarrow as pa

from mqbroker.client import Message
from mqbroker.client.blocking import Producer
from mqbroker.client.identity import local_ip
from mqbroker.spark.connections import sender_for
from mqbroker.spark.packing import FreshIds, Packer, RowIds
from mqbroker.spark.sink_options import Guarantee, choose_sink_columns, parse_sink_options
from mqbroker.spark.writing import TaskWriter, queues_at_start
from mqbroker.wire.ids import UniqIdSource

#: Rows of a record batch of Spark.
TOGETHER = 10_000
#: Writes of each guarantee in a round, in turns: they differ by less than one from the next on a busy machine.
TURNS = 4
#: Messages of a batch: about as many bytes as the sink's.
BATCH = 600
BODY = b"x" * 128
PLAIN = [("body", "binary")]
FULL = [*PLAIN, ("keys", "array<string>"), ("tags", "string"), ("properties", "map<string,string>")]


def main() -> None:
    name_server, rounds, rows, *filled = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]
    for topic in filled:
        write(name_server, FULL, record_batch(FULL), rows, "fill", 0, topic=topic)
        return
    with Producer(name_server, "bench") as producer:
        for n in range(rounds):
            for what, fields in (("plain", PLAIN), ("full", FULL)):
                frame = record_batch(fields)
                for _ in range(TURNS):
                    write(name_server, fields, frame, rows, f"{what} sink", n)
                    write(name_server, fields, frame, rows, f"{what} once", n, guarantee="effectively-once")
                loop(producer, what, frame, rows)


def record_batch(fields: list[tuple[str, str]]) -> Any:
    numbers = range(TOGETHER)
    columns = {
        "body": pa.array([BODY] * TOGETHER, pa.binary()),
        "keys": pa.array([[f"order-{n}"] for n in numbers], pa.list_(pa.string())),
        "tags": pa.array(["paid"] * TOGETHER, pa.string()),
        "properties": pa.array([[("shop", str(n))] for n in numbers], pa.map_(pa.string(), pa.string())),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name, _ in fields], names=[name for name, _ in fields])


def write(
    name_server: str, fields: list[tuple[str, str]], frame: Any, rows: int, what: str, n: int, **options: str
) -> None:
    checked = parse_sink_options({"nameServer": name_server, "topic": "bench"} | options)
    is_once = checked.guarantee is Guarantee.EFFECTIVELY_ONCE
    sender = sender_for(checked)
    write_id = f"{what} {n} {time.time_ns()}"
    packer = Packer(
        columns=choose_sink_columns(fields, checked),
        topic=checked.topic,
        batch_bytes=checked.batch_bytes,
        partition=0,
        write_id=write_id,
        ids=RowIds(write_id, 0)
        if is_once
        else FreshIds(UniqIdSource(local_ip([name_server]), 1, time.time_ns() & 0xFFFFFFFF, time.time)),
        queues=queues_at_start(sender, checked, time.monotonic, time.sleep),
        now_ms=lambda: int(time.time() * 1000),
    )
    began, clock = time.process_time(), time.monotonic()
    done = TaskWriter(packer, sender, checked, 0, time.monotonic, time.sleep).write([frame] * (rows // TOGETHER))
    say(what, done.sent, began, clock)


def loop(producer: Producer, what: str, frame: Any, rows: int) -> None:
    columns = [column.to_pylist() for column in frame.columns]
    began, clock = time.process_time(), time.monotonic()
    for _ in range(rows // TOGETHER):
        for at in range(0, TOGETHER, BATCH):
            some = zip(*(column[at : at + BATCH] for column in columns), strict=True)
            if what == "plain":
                producer.send_batch([Message("bench", body) for (body,) in some])
            else:
                producer.send_batch([Message("bench", b, keys=k, tags=t, properties=dict(p)) for b, k, t, p in some])
    say(f"{what} loop", rows, began, clock)


def say(what: str, rows: int, began: float, clock: float) -> None:
    spent = {"cpu": time.process_time() - began, "seconds": time.monotonic() - clock}
    print(json.dumps({"what": what, "rows": rows} | spent), flush=True)


if __name__ == "__main__":
    main()
