"""The PySpark data source "rocketmq": topics as data frames, in batches and as streams.

`source` is what Spark calls; `options`, `offsets`, `plan` and `schema` are rules without I/O; `pulling`, `decode` and
`connections` run in Spark's Python workers. Nothing here imports Twisted, and importing this package imports neither
PySpark nor Arrow.
"""
