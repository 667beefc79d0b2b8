"""The PySpark data source "rocketmq": topics as data frames, in batches and as streams.

`source` implements Spark's interface; `options`, `offsets` and `schema` have no I/O; `reading`, `decode` and
`connections` run in Spark's Python workers. Nothing here imports Twisted, and importing this package imports neither
PySpark nor Arrow.
"""
