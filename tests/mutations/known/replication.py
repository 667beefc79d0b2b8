"""Mistakes of replication."""

from tests.mutations.mutation import Mutation

_LINK = "tests/ha/test_link.py"
_MASTER = "tests/ha/test_master.py"

MISTAKES = [
    Mutation(
        "believe a slave that acknowledges what it was not sent",
        "ha/link.py",
        "if not self.acknowledged <= offset <= self.sent:",
        "if not self.acknowledged <= offset:",
        (_LINK,),
    ),
    Mutation(
        "send a slave the log of a master that it is ahead of",
        "ha/link.py",
        "        if offset > log_end:\n            raise BadPeer(",
        "        if False:\n            raise BadPeer(",
        (_LINK,),
    ),
    Mutation(
        "send a piece over the end of a segment",
        "ha/link.py",
        "min(self._piece_bytes_max, log_end - self.sent, in_segment)",
        "min(self._piece_bytes_max, log_end - self.sent)",
        (_LINK,),
    ),
    Mutation(
        "append a piece that does not continue the log",
        "ha/link.py",
        "if self.end is not None and offset != self.end:",
        "if self.end is not None and offset > self.end:",
        (_LINK,),
    ),
    Mutation(
        "send to a slave that does not read",
        "ha/master.py",
        "while not (self._is_paused or self._is_reading",
        "while not (self._is_reading",
        (f"{_MASTER}::test_a_slave_that_does_not_read_is_sent_nothing_more",),
    ),
    Mutation(
        "close a link since the store is busy",
        "ha/master.py",
        "            except StoreError:  # too many reads wait; the next look tries again\n",
        "            except StoreError as error:\n                self.close(str(error))\n",
        (f"{_MASTER}::test_a_store_that_is_busy_is_asked_again",),
    ),
    Mutation(
        "keep a link over which nothing comes",
        "ha/master.py",
        "if now - self.heard_at > settings.idle_s:",
        "if False:",
        (f"{_MASTER}::test_heartbeats_come_where_nothing_else_does_and_a_silent_slave_is_dropped",),
    ),
    Mutation(
        "stop a master before its slaves have the log",
        "ha/master.py",
        "if not self._slaves.are_complete:",
        "if False:",
        (f"{_MASTER}::test_a_stop_waits_until_slaves_have_the_log",),
    ),
    Mutation(
        "believe a slave that connects and says that it has all",
        "ha/link.py",
        "self.start is not None and self.start <= begin and end",
        "self.start is not None and end",
        ("tests/ha/test_acknowledgements.py",),
    ),
    Mutation(
        "confirm a message of which the slave lacks the last byte",
        "ha/link.py",
        "and end <= self.acknowledged",
        "and end <= self.acknowledged + 1",
        (_LINK,),
    ),
    Mutation(
        "wait for a slave that is far behind",
        "ha/acknowledgements.py",
        "if acknowledged is None or end - acknowledged >= self._behind_max:",
        "if acknowledged is None:",
        ("tests/ha/test_acknowledgements.py",),
    ),
    Mutation(
        "count a link without a report as a slave",
        "ha/master.py",
        "for connection in self.links if connection.link.sent is not None]",
        "for connection in self.links]",
        ("tests/ha/test_acknowledgements.py",),
    ),
    Mutation(
        "answer before the disk has what a slave has",
        "broker/requests/send_message.py",
        "return durable.addCallbacks(lambda _: code, lambda failure: code or failure)",
        "return succeed(code)",
        ("tests/broker/service/test_replication.py::test_with_sync_flush_both_must_have_it",),
    ),
    Mutation(
        "answer before a slave has the message",
        "broker/requests/send_message.py",
        "if not (self._sync or self._acknowledgements) or",
        "if not self._sync or",
        ("tests/broker/service/test_replication.py::test_a_send_is_answered_once_a_slave_has_the_message",),
    ),
    Mutation(
        "register an address for slaves where none is served",
        "broker/broker_service.py",
        'ha_addr = "" if self._master is None else f"{settings.broker_ip2}:{self._master.port}"',
        'ha_addr = f"{settings.broker_ip2}:{settings.ha_listen_port}"',
        ("tests/broker/service/test_ports.py::test_a_port_for_slaves_that_somebody_has_is_not_registered",),
    ),
    Mutation(
        "serve slaves from anywhere though the broker is protected",
        "broker/broker_service.py",
        'return None if is_protected else parse_pattern("*")',
        'return parse_pattern("*")',
        ("tests/broker/service/test_ports.py::test_a_protected_broker_serves_the_slaves_that_its_settings_name",),
    ),
]
