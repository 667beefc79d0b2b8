"""The extFields of every request and response of 4.9.7, one frozen class for each, named as in Java.

Grouped by subject in modules, and all exported here, with their decoder and encoder (`coding`).
"""

from mqbroker.wire.headers.coding import *  # noqa: F403
from mqbroker.wire.headers.messages import *  # noqa: F403
from mqbroker.wire.headers.name_server import *  # noqa: F403
from mqbroker.wire.headers.topics_and_groups import *  # noqa: F403
