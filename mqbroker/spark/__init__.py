"""The PySpark data source "rocketmq": topics as data frames, in batches and as streams.

`source` and `sink` implement Spark's interface; `options`, `offsets` and `schema` have no I/O; `reading`, `decode`,
`packing`, `writing` and `connections` run in Spark's Python workers. Nothing here imports Twisted, and importing this
package imports neither PySpark nor Arrow.
"""

from mqbroker.spark.foreach import foreach_batch
from mqbroker.spark.frames import read, stream, write
from mqbroker.spark.registering import register

__all__ = ["foreach_batch", "read", "register", "stream", "write"]
