"""What peers may ask of us, each and all together. Everything here is bounded, and says what happens at its bound."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from mqbroker.wire.frame import FRAME_BYTES_MAX

if TYPE_CHECKING:
    # Clients use limits without any settings file.
    from mqbroker.config import NettySettings


@attrs.frozen
class Limits:
    """Bounds on connections.

    frame_bytes_max: a longer frame closes its connection before it is collected.
    requests_in_flight_max: on one connection; reading pauses while as many wait for their answers.
    idle_seconds: a connection with no traffic either way for so long is closed.
    frame_seconds_max: a frame that is begun must be whole by then, or its connection is closed.
    connections_max: a connection over it is closed as soon as it is accepted.
    connections_per_address_max: the same, for those from one address.
    files_max: with as many open files, of whatever kind, no connection is taken.
    requests_under_way_max: on all connections; while as many wait for their answers, others are answered SYSTEM_BUSY.
    unfinished_bytes_max: of frames not yet whole, on all connections; whose bytes come over it is closed.
    unsent_bytes_max: of answers that a peer does not read; its connection is closed. So it is where the peer has read
        nothing for `idle_seconds`.
    """

    frame_bytes_max: int = FRAME_BYTES_MAX
    requests_in_flight_max: int = 10_000
    idle_seconds: float = 120.0
    frame_seconds_max: float = 30.0
    connections_max: int = 20_000
    connections_per_address_max: int = 12_000
    files_max: int = sys.maxsize
    requests_under_way_max: int = 100_000
    unfinished_bytes_max: int = 512 * 1024 * 1024
    unsent_bytes_max: int = 64 * 1024 * 1024

    @classmethod
    def of(cls, server: NettySettings, files_max: int = sys.maxsize) -> Limits:
        """The bounds that a server's settings set, and how many files may be open."""
        return cls(
            frame_bytes_max=server.frame_max_length,
            idle_seconds=server.server_channel_max_idle_time_seconds,
            connections_max=server.connections_max,
            connections_per_address_max=server.connections_per_address_max,
            files_max=files_max,
            unsent_bytes_max=server.unsent_bytes_max,
        )


@attrs.define
class Load:
    """What all connections of one server, or one client, have under way together.

    on_idle: called when the last request under way is answered.
    """

    requests: int = 0
    unfinished_bytes: int = 0
    on_idle: Callable[[], None] | None = None
