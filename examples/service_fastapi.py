"""A web service with FastAPI: takes orders by HTTP, and counts those that were paid.

Start it with `uvicorn service_fastapi:app`; uvicorn stops it on SIGTERM.
"""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from mqbroker.client import ClientError, Message, MQError, ReceivedMessage
from mqbroker.client.aio import Producer, PushConsumer
from pydantic import BaseModel

NAME_SERVERS = "127.0.0.1:9876"

producer = Producer(NAME_SERVERS, "shop")
paid: Counter[str] = Counter()


async def count(order: ReceivedMessage) -> None:
    """Called with each paid order; the members of the group share them."""
    paid[order.keys[0]] += 1


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Start the clients on the loop that serves the requests, and stop them with it."""
    consumer = PushConsumer(NAME_SERVERS, "shop-counter", count)
    consumer.subscribe("orders", "paid")
    async with producer, consumer:
        yield


app = FastAPI(lifespan=lifespan)


class Order(BaseModel):
    id: str
    text: str


@app.post("/orders", status_code=202)
async def place(order: Order) -> dict[str, str]:
    message = Message("orders", order.text, tags="paid", keys=order.id)
    try:
        # All attempts together end after two seconds: the caller waits.
        result = await producer.send(message, key=order.id, timeout_s=2)
    except (ClientError, MQError) as error:
        raise HTTPException(
            503, "no broker has confirmed the order: try again"
        ) from error
    return {"message": result.msg_id}


@app.get("/paid/{order_id}")
async def times_paid(order_id: str) -> int:
    return paid[order_id]
