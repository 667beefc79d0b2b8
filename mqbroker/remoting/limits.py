"""What one connection may ask of us. Everything here is bounded, and says what happens at its bound."""

from __future__ import annotations

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
    """

    frame_bytes_max: int = FRAME_BYTES_MAX
    requests_in_flight_max: int = 10_000
    idle_seconds: float = 120.0
    frame_seconds_max: float = 30.0
    connections_max: int = 20_000

    @classmethod
    def of(cls, server: NettySettings) -> Limits:
        """The bounds that a server's settings set."""
        return cls(frame_bytes_max=server.frame_max_length, idle_seconds=server.server_channel_max_idle_time_seconds)
