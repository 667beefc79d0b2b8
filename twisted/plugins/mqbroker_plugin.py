"""What twistd finds: the two daemons. twistd imports every plugin to list them, so nothing else is here."""

from twisted.application.service import ServiceMaker

namesrv = ServiceMaker("mqbroker name server", "mqbroker.daemons.namesrv", "RocketMQ name server", "namesrv")

broker = ServiceMaker("mqbroker broker", "mqbroker.daemons.broker", "RocketMQ message broker", "mqbroker")
