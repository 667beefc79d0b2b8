"""What twistd finds: the names of the two daemons. Nothing else is imported here, for twistd loads every plugin to list them."""

from twisted.application.service import ServiceMaker

namesrv = ServiceMaker("RocketMQ name server", "mqbroker.daemons.namesrv", "A RocketMQ 4.9 name server.", "namesrv")

broker = ServiceMaker("RocketMQ broker", "mqbroker.daemons.broker", "A RocketMQ 4.9 message broker.", "mqbroker")
