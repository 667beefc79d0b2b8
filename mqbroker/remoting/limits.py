"""Resource limits for peers, per connection, per address and in total, and their enforcement."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from mqbroker.wire.command import FRAME_BYTES_MAX

if TYPE_CHECKING:
    # Clients use limits without any settings file.
    from mqbroker.config import NettySettings

#: One user may hold at most this multiple of what is still free.
SHARE = 2


@attrs.frozen
class Limits:
    """Limits on connections.

    frame_bytes_max: a longer frame closes its connection before it is buffered.
    requests_in_flight_max: per connection; reading pauses while this many requests are pending.
    idle_seconds: a connection without traffic in either direction for this long is closed.
    frame_seconds_max: time to receive a whole frame once begun; after it the connection is closed.
    handshake_seconds_max: time to complete a TLS handshake once begun; after it the connection is closed.
    connections_max: above it, the longest idle connection of the address with the most connections is closed, or the
        new connection if that address is its own.
    connections_per_address_max: a connection above it is closed as soon as it is accepted.
    files_max: with this many open files of any kind, the same happens as with `connections_max`.
    requests_under_way_max: on all connections; while as many wait for their answers, or while those of the address or
        the connection are more than twice those that still may, others are answered SYSTEM_BUSY.
    unfinished_bytes_max: of frames that are not yet whole or wait to be handled, on all connections; over it the
        connection that keeps the most is closed, of the address that does.
    unsent_bytes_max: of answers that a peer does not read; its connection is closed. So it is where the peer has read
        nothing for `idle_seconds`.
    """

    frame_bytes_max: int = FRAME_BYTES_MAX
    requests_in_flight_max: int = 10_000
    idle_seconds: float = 120.0
    frame_seconds_max: float = 30.0
    handshake_seconds_max: float = 10.0
    connections_max: int = 20_000
    connections_per_address_max: int = 12_000
    files_max: int = sys.maxsize
    requests_under_way_max: int = 100_000
    unfinished_bytes_max: int = 512 * 1024 * 1024
    unsent_bytes_max: int = 64 * 1024 * 1024

    @classmethod
    def of(cls, server: NettySettings, files_max: int = sys.maxsize) -> Limits:
        """The limits from a server's settings, with `files_max` open files."""
        return cls(
            frame_bytes_max=server.frame_max_length,
            idle_seconds=server.server_channel_max_idle_time_seconds,
            connections_max=server.connections_max,
            connections_per_address_max=server.connections_per_address_max,
            files_max=files_max,
            unsent_bytes_max=server.unsent_bytes_max,
        )


def address_of(host: bytes) -> bytes:
    """The peer's IPv4 address, or its IPv6 /64 network, which counts as one peer. `host` is encoded as in records."""
    return host[:8] if len(host) > 8 else host[:4]


def has_fair_share(most: int, taken: int, of_address: int, own: int) -> bool:
    """Whether more of a shared resource of size `most` may be used: by an address up to twice what is free, and by each
    of its connections up to twice what is free to the address. So newcomers always get some."""
    free = most - taken
    free_here = SHARE * free - of_address
    return free > 0 and free_here >= 0 and own <= SHARE * free_here


@attrs.define
class Shares:
    """Shares of connections and addresses in a common resource."""

    taken: int = 0
    _addresses: dict[bytes, int] = attrs.field(factory=dict)
    _connections: dict[Any, int] = attrs.field(factory=dict)

    def of(self, connection: Hosted) -> int:
        """The share of one connection."""
        return self._connections.get(connection, 0)

    def acquire(self, connection: Hosted, size: int, most: int) -> bool:
        """Take `size`, of `most` for all; False, with nothing taken, where that would leave too little to others."""
        address = address_of(connection.remote_host)
        of_address, own = self._addresses.get(address, 0), self.of(connection)
        if self.taken + size > most or not has_fair_share(most, self.taken, of_address, own):
            return False
        self.taken += size
        self._addresses[address] = of_address + size
        self._connections[connection] = own + size
        return True

    def give_back(self, connection: Hosted, size: int) -> None:
        """The amount in use."""
        self.taken -= size
        shares: tuple[tuple[dict[Any, int], Any], ...] = (
            (self._addresses, address_of(connection.remote_host)),
            (self._connections, connection),
        )
        for kept, key in shares:
            left = kept.get(key, 0) - size
            if left:
                kept[key] = left
            else:
                kept.pop(key, None)


class Hosted(Protocol):
    """A connection whose resources are counted."""

    remote_host: bytes


class Connected(Protocol):
    """A connection, as far as it is chosen to be closed."""

    closed: bool
    last_active: float
    #: Bytes of frames that are incomplete, or wait to be handled.
    kept_bytes: int

    def refuse(self, why: str) -> None:
        """Close the connection and drop the bytes that it sent."""


@attrs.define(eq=False)
class AddressLoad:
    """What the connections from one address have under way together. The rest is for FairScheduler."""

    address: bytes
    #: The newest last.
    connections: dict[Any, None] = attrs.field(factory=dict)
    requests: int = 0
    kept_bytes: int = 0

    turn: int = 0
    turn_s: float = 0.0
    handled_s: float = 0.0
    floor_s: float = 0.0
    waiting: list[tuple[float, int, Any]] = attrs.field(factory=list)


@attrs.define
class Load:
    """What all connections of one server, or one client, have under way together, and of it each address.

    on_idle: called when the last request under way is answered.
    is_held: requests wait on their connections, see `RemotingServerFactory.hold`.
    """

    requests: int = 0
    kept_bytes: int = 0
    is_held: bool = False
    on_idle: Callable[[], None] | None = None
    _addresses: dict[bytes, AddressLoad] = attrs.field(factory=dict)

    def of(self, host: bytes) -> AddressLoad:
        """The share of the peer at `host`."""
        address = address_of(host)
        found = self._addresses.get(address)
        if found is None:
            found = self._addresses[address] = AddressLoad(address)
        return found

    def forget(self, part: AddressLoad) -> None:
        """Where nothing is left of it."""
        if not part.connections and not part.requests:
            self._addresses.pop(part.address, None)

    def is_light(self, requests_max: int) -> bool:
        """Whether so few are under way that any connection may have more."""
        return 2 * self.requests < requests_max

    def has_room(self, requests_max: int, part: AddressLoad, own: int) -> bool:
        """Whether a connection with `own` requests under way may have one more."""
        return has_fair_share(requests_max, self.requests, part.requests, own)

    def close_largest(self, bytes_max: int) -> None:
        """Close the connections that hold the most until no more than `bytes_max` are held."""
        while self.kept_bytes > bytes_max:
            part = max(self._addresses.values(), key=lambda each: each.kept_bytes)
            connection: Connected = max(reversed(part.connections), key=lambda each: each.kept_bytes)
            connection.refuse(
                f"{self.kept_bytes} bytes of unfinished frames are kept for all connections, the most of them for it"
            )

    def make_room_for(self, part: AddressLoad, why: str) -> bool:
        """Close the connection that was silent for the longest, of the address that has the most of them. False where
        that would be `part`'s own, which has no right to more."""
        biggest = max(self._addresses.values(), key=lambda each: len(each.connections))
        if len(biggest.connections) <= len(part.connections) + 1:
            return False
        connection: Connected = min(biggest.connections, key=lambda each: (each.closed, each.last_active))
        connection.refuse(why)
        return True
