"""What the defaults take from the machine. The only module of the settings that asks the operating system."""

from __future__ import annotations

import os
import socket

import attrs


def first_address() -> str:
    """The address by which this machine reaches others; its loopback where it reaches none. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # An address set aside for documentation: connecting a datagram socket only chooses a route.
            probe.connect(("192.0.2.1", 9))
            address: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
    return address


@attrs.frozen
class Host:
    """The machine's names, as the defaults use them."""

    home: str
    name: str
    address: str

    @classmethod
    def this(cls) -> Host:
        return cls(os.path.expanduser("~"), socket.gethostname() or "DEFAULT_BROKER", first_address())
