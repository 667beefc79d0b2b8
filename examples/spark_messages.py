"""Sends what the jobs on Spark read: clicks, bills, payments and dead letters."""

import json
from datetime import UTC, datetime, timedelta

from mqbroker.client import ConsumeFrom, Message, PushOptions
from mqbroker.client.blocking import Producer, PushConsumer

NAME_SERVER = "127.0.0.1:9876"

morning = datetime.now(UTC) - timedelta(hours=12)
#: Users, and the minute of each click.
clicks = [("ada", 0), ("ada", 2), ("bob", 3), ("ada", 120), ("carl", 240)]
reasons = ["no such address", "nobody at home", "no such address"]

with Producer(NAME_SERVER, "shop") as producer:
    for user, minute in clicks:
        at = (morning + timedelta(minutes=minute)).isoformat()
        producer.send(Message("clicks", json.dumps({"user": user, "at": at})))
    for bill in range(5):
        producer.send(Message("bills", json.dumps({"bill": bill, "amount": 20 + bill})))
    for bill in (1, 3, 7):
        producer.send(Message("payments", json.dumps({"bill": bill})))
    for line in ("to be or not to be", "to do is to be"):
        producer.send(Message("lines", line))
    for reason in reasons:
        producer.send(Message("parcels", reason))

# A consumer that gives up on each parcel, and says why.
options = PushOptions(consume_from=ConsumeFrom.FIRST)
deliveries = PushConsumer(NAME_SERVER, "delivery", options=options)
deliveries.subscribe("parcels")
with deliveries:
    for _, parcel in zip(reasons, deliveries, strict=False):
        parcel.dead_letter(parcel.body.decode())
print("sent")
