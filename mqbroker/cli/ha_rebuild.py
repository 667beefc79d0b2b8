"""`mq ha rebuild`: rewrites the state of a group in etcd from what its members have, after etcd was lost or restored
from an old backup."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from typing import Any

import click

from mqbroker.cli.cluster import asked
from mqbroker.cli.failures import told
from mqbroker.cli.lines import escape_controls
from mqbroker.cli.servers import Servers, server_options


@click.command()
@click.option(
    "-c",
    "--config",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help="The settings file of one of the group's brokers. It names the group and etcd's endpoints.",
)
@click.option("--keep", type=click.IntRange(1), metavar="ID", help="Keep this broker's log, whatever the others have.")
@click.option("--yes", is_flag=True, help="Write without asking for confirmation.")
@server_options
def rebuild(config: str, keep: int | None, yes: bool, servers: Servers) -> None:
    """Rewrite a group's state in etcd if no master is elected because etcd lost it or was restored from an old backup.

    Shows what each running broker has, and which brokers will be in sync. Start all brokers first, so that none is
    missing. No log is changed.
    """
    from mqbroker.broker.broker_group import etcd_access
    from mqbroker.cli.group_copies import copies_of, copy_lines, new_state, read_keys, write_state
    from mqbroker.config import load_broker_settings
    from mqbroker.ha.election import GroupSettings
    from mqbroker.ha.etcd import EtcdClient

    settings = load_broker_settings(config, warn=lambda warning: click.echo(warning, err=True))
    if not settings.etcd_endpoints:
        raise click.UsageError(f"{config} sets no etcdEndpoints: its broker belongs to no group")
    cluster, broker = settings.broker_cluster_name, settings.broker_name
    prefix = GroupSettings(cluster=cluster, broker=broker, replica_id=1, ttl_s=1).prefix

    async def run(reactor: Any) -> None:
        etcd = EtcdClient(reactor, etcd_access(settings))
        try:
            keys = await read_keys(etcd, prefix)
            copies = asked(servers, lambda net, _: copies_of(net, keys))
            for line in copy_lines(copies, on_terminal=sys.stdout.isatty()):
                click.echo(line)
            state = new_state(cluster, broker, keys, copies, keep)
            ids = ", ".join(map(str, sorted(state.in_sync)))
            click.echo(f"in sync will be: {ids}; the commit point is {state.committed}; one of them will be elected")
            if keep is not None:
                click.echo(f"messages that broker {keep} does not have are lost", err=True)
            if not yes:
                click.confirm(f"Write this as the state of {escape_controls(broker)}?", abort=True)
            await write_state(etcd, prefix, state, keys.revision)
        finally:
            await etcd.close()

    with told():
        run_in_reactor(run)
    click.echo("written: `mq ha status` shows the master in a few seconds")


def run_in_reactor(act: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    """Run it, and the reactor as long; raises what it raises."""
    from twisted.internet import reactor as installed
    from twisted.internet.defer import Deferred
    from twisted.python.failure import Failure

    reactor: Any = installed
    failed: list[BaseException] = []

    def ended(result: Failure | None) -> None:
        if result is not None and result.value is not None:
            failed.append(result.value)
        reactor.callLater(0, reactor.stop)

    reactor.callWhenRunning(lambda: Deferred.fromCoroutine(act(reactor)).addBoth(ended))
    reactor.run()
    if failed:
        raise failed[0]
