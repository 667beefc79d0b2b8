"""`python -m mqbroker.cli` is `mq`."""

from mqbroker.cli import main

main()
