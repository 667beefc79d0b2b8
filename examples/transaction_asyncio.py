"""Stores orders in a database, and announces those that are stored."""

import asyncio
import sqlite3

from mqbroker.client import Message, ReceivedMessage, TransactionState
from mqbroker.client.aio import TransactionProducer

NAME_SERVERS = "127.0.0.1:9876"
database = sqlite3.connect("orders.db")
database.execute("CREATE TABLE IF NOT EXISTS orders (item TEXT, message TEXT)")
stock = {"a book", "a lamp"}


def place(order: Message) -> TransactionState:
    """The local transaction. The message's id goes into the same row."""
    item = order.body.decode()
    if item not in stock:
        return TransactionState.ROLLBACK
    with database:
        database.execute("INSERT INTO orders VALUES (?, ?)", (item, order.unique_key))
    return TransactionState.COMMIT


def is_placed(order: ReceivedMessage) -> TransactionState:
    """Brokers ask this where a crash, or the network, kept them from hearing."""
    found = database.execute(
        "SELECT 1 FROM orders WHERE message = ?", (order.msg_id,)
    ).fetchone()
    return TransactionState.COMMIT if found else TransactionState.ROLLBACK


async def main() -> None:
    async with TransactionProducer(
        NAME_SERVERS, "shop", is_placed, topics=["placed"]
    ) as producer:
        for item in ("a book", "a car"):
            result = await producer.send_in_transaction(Message("placed", item), place)
            print(item, result.state.name)
    database.close()


asyncio.run(main())
