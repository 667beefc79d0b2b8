"""Stores an order and its message in one transaction of a database, then sends it."""

import sqlite3
import uuid

from mqbroker.client import Message
from mqbroker.client.blocking import Producer

database = sqlite3.connect("shop.db")
database.execute("CREATE TABLE IF NOT EXISTS orders (item TEXT)")
database.execute("CREATE TABLE IF NOT EXISTS outbox (id TEXT PRIMARY KEY, body TEXT)")


def order(item: str) -> None:
    """Both rows are there, or none."""
    with database:
        database.execute("INSERT INTO orders VALUES (?)", (item,))
        row = (uuid.uuid4().hex.upper(), f"ordered: {item}")
        database.execute("INSERT INTO outbox VALUES (?, ?)", row)


def send_outbox(producer: Producer) -> None:
    """Call it after each order, and at the start for what was left by a crash."""
    for number, body in database.execute(
        "SELECT * FROM outbox ORDER BY rowid"
    ).fetchall():
        # A crash after this line sends the message again, with the same id.
        producer.send(Message("ordered", body, unique_key=number))
        with database:
            database.execute("DELETE FROM outbox WHERE id = ?", (number,))
        print("sent:", body)


with Producer("127.0.0.1:9876", "shop") as producer:
    order("a book")
    send_outbox(producer)
database.close()
