"""RocketMQ 4.9 in Python: name server, broker, clients and a Spark data source."""

__version__ = "0.1.0"
