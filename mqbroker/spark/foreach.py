"""A function for `foreachBatch`, which writes each batch of a query in one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mqbroker.spark.errors import BadOption

#: Where Spark keeps the id of a query, which a restart with its checkpoint does not change.
QUERY_ID = "sql.streaming.queryId"


def texts_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Options given in Python, as Spark passes them."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def foreach_batch(**options: Any) -> Callable[[Any, int], None]:
    """A function for `writeStream.foreachBatch` that writes each batch with the format rocketmq and these options.

    It is the way to write a query in the output mode update, which Spark refuses for Python sinks. With
    guarantee=effectively-once a batch that is repeated is recognised by the query's id and the batch's, or by
    `writeId` in place of the former; two such functions of one query that write to the same topic need different ones.
    """
    texts = texts_of(options)
    given = next((texts.pop(name) for name in list(texts) if name.lower() == "writeid"), None)

    def write(frame: Any, batch_id: int) -> None:
        # A session of Spark Connect has no context.
        context = getattr(frame.sparkSession, "sparkContext", None)
        query = given or (context is not None and context.getLocalProperty(QUERY_ID))
        if not query:
            raise BadOption(
                "writeId", "is required: Spark does not tell the id of the query here; use a name of your own"
            )
        from mqbroker.spark import api, frames

        texts["writeId"] = f"{query}/{batch_id}"
        if api.HAS_SOURCES:
            frame.write.format("rocketmq").mode("append").options(**texts).save()
        else:
            frames.write(frame, **texts)

    return write
