"""The protocol and the record format of RocketMQ 4.9, as values. No I/O, no clock, no Twisted."""
