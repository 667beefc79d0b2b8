"""Mistakes that message systems have made, ready to be made again: each must turn the tests red."""

from tests.mutations.known import (
    broker,
    clients,
    copies,
    etcd,
    failover,
    hooks,
    kernel,
    limits,
    log,
    network,
    queues,
    readers,
    replication,
    second_times,
    shards,
    slave_trust,
    spark,
    switches,
)
from tests.mutations.mutation import SOURCE, Mutation

__all__ = ["KNOWN", "SOURCE", "Mutation"]

KNOWN = [
    *log.MISTAKES,
    *queues.MISTAKES,
    *broker.MISTAKES,
    *network.MISTAKES,
    *limits.MISTAKES,
    *replication.MISTAKES,
    *failover.MISTAKES,
    *readers.MISTAKES,
    *etcd.MISTAKES,
    *copies.MISTAKES,
    *shards.MISTAKES,
    *slave_trust.MISTAKES,
    *second_times.MISTAKES,
    *switches.MISTAKES,
    *kernel.MISTAKES,
    *spark.MISTAKES,
    *clients.MISTAKES,
    *hooks.MISTAKES,
]
