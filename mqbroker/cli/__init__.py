"""The command `mq`: each command is in its own module, which is imported only when it runs.

Exit codes: 0 done; 1 failed or refused; 2 wrong usage; 3 nobody answers; 130 interrupted.
"""

from __future__ import annotations

import click

from mqbroker import __version__
from mqbroker.cli.brokers import brokers
from mqbroker.cli.demo import demo
from mqbroker.cli.dev import dev
from mqbroker.cli.ha import ha
from mqbroker.cli.pub import pub
from mqbroker.cli.store import store
from mqbroker.cli.sub import sub


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mq")
def cli() -> None:
    """Run, try and use RocketMQ 4.9 brokers.

    \b
    mq dev                     run a name server and a broker here
    mq sub greetings -g me     receive messages, in a second terminal
    mq pub greetings "hello"   send one, in a third
    mq demo                    a test under load: two brokers, one killed, and Spark
    mq store check DIR         check a broker's directory, without the broker
    mq brokers                 list brokers and their message rates
    mq ha status               show how far slaves are behind their masters
    """


for _command in (dev, pub, sub, demo, brokers, store, ha):
    cli.add_command(_command)


def main() -> None:
    """The console script."""
    cli(prog_name="mq")
