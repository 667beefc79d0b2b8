"""The extFields of every request and response of 4.9.7, one frozen class for each, named as in Java.

They are sorted by what they are about; all are to be had from here, with what reads and writes them (`coding`).
"""

from mqbroker.wire.headers.coding import *  # noqa: F403
from mqbroker.wire.headers.messages import *  # noqa: F403
from mqbroker.wire.headers.name_server import *  # noqa: F403
from mqbroker.wire.headers.topics_and_groups import *  # noqa: F403
