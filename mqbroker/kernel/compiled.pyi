"""Types of the compiled module; see the .pxi files for what the functions do."""

from collections.abc import Callable, Collection, Generator, Sequence
from typing import Any, TypeVar

from mqbroker.kernel import OffsetClock as OffsetClock
from mqbroker.kernel import Peer as Peer
from mqbroker.kernel import Slots as Slots
from mqbroker.kernel import Socket as Socket

T = TypeVar("T")
Guard = Callable[[Any, bytes | None, bytes | None, bytes, tuple[bytes, ...]], bool] | None

def scan(
    data: bytes, at: int, stop: int, offset: int, count: int, has_crc: bool
) -> tuple[int, int, int, int, bool]: ...

class QueueEntries:
    def __init__(
        self,
        open_queue: Callable[[bytes, int], tuple[Any, int, bool]],
        delays_ms: Sequence[int],
        stops_at_named: bool,
    ) -> None: ...
    def take(
        self, data: bytes, at: int, stop: int, offset: int
    ) -> tuple[int, int, list[tuple[Any, bytes, int, int, int, bool, int]]]: ...

def index_keys(
    data: bytes,
    at: int,
    stop: int,
    offset: int,
    file_bytes: Any,
    slots: int,
    number: int,
    number_max: int,
    begin_ms: int,
    slots_used: int,
    resumed: int,
) -> tuple[int, int, int, int, int]: ...

class Sends:
    def __init__(
        self,
        code: int,
        store_host: bytes,
        id_prefix: bytes,
        cluster: bytes,
        before_id: bytes,
        tail: bytes,
        body_max: int,
        always_waits: bool,
        delayed: tuple[bytes, int],
        halves: tuple[bytes, int],
        open_queue: Callable[[bytes, int], Any],
        guard: Guard,
    ) -> None: ...
    def take(
        self,
        reads: Sequence[tuple[bytes, int, Any]],
        topics: dict[bytes, tuple[int, int, list[Any]]],
        now_ms: int,
        log_end: int,
        room: int,
    ) -> (
        tuple[
            list[tuple[int, int]],
            list[bytes],
            list[bytes],
            int,
            bytes,
            int,
            list[tuple[Any, int]],
            list[tuple[bytes, int]],
        ]
        | None
    ): ...

def poll_until(epoll: int, until: float, most: int) -> list[tuple[int, int]]: ...
def share_reads(
    ready: list[tuple[int, int]], selectables: dict[int, Any]
) -> tuple[dict[Any, list[Socket]], list[tuple[int, int]]]: ...

class Receiver:
    def receive(
        self, sockets: list[Socket], now: float
    ) -> tuple[int, list[tuple[bytes, int, Peer]], list[Socket], dict[Any, int], list[tuple[Socket, bytes | int]]]: ...

def send_each(peers: list[Peer], pieces: list[bytes]) -> list[tuple[Peer, bytes, bool]]: ...
def serve_plain(
    reads: list[tuple[bytes, int, Any]],
    take: Callable[[list[tuple[bytes, int, Any]]], tuple[Any, ...] | None],
    rounds: int,
    write_left: Callable[[list[tuple[Any, bytes, bool]]], None],
    settle: Callable[[Any, list[Any]], None],
) -> list[tuple[int, tuple[bytes, int, Any]]]: ...

class ResidentRange:
    queue: Any
    def __init__(
        self,
        queue: Any,
        corrupt_ranges: Any,
        entries: Callable[[], memoryview | None],
        log: Callable[[], memoryview | None],
        first: int,
        begin: int,
        end: int,
        file_end: int,
        log_base: int,
        low: int,
        high: int,
        count_max: int,
        bytes_max: int,
        window: int,
        until: float,
    ) -> None: ...

def pick_messages(
    entries: Any,
    at: int,
    count: int,
    codes: Collection[int] | None,
    room: int,
    bytes_limit: int,
    read: Callable[[int, int], Any],
    origin: tuple[bytes, int, int, bool] | None,
) -> tuple[int, int, bytes] | None: ...
def take_pulls(
    reads: Sequence[tuple[bytes, int, Any]],
    plans: dict[bytes, tuple[Any, Any, Collection[int] | None, int]],
    queues: dict[Any, Any],
    ranges: dict[Any, ResidentRange],
    now: float,
    locate: Callable[[Any, int, int, bool], tuple[Any, int, int, int, int, Any, Any, int, int] | None],
    commit: Callable[[Any, int], None],
    counts: dict[Any, list[int]],
    tail: bytes,
    pulls_max: int,
    bytes_max: int,
    guard: Guard,
) -> tuple[list[tuple[int, int]], list[bytes]] | None: ...
def record_starts(data: bytes) -> bytes | None: ...
def wrong_body(data: bytes, starts: Any, ends: Any, crcs: Any) -> int: ...
def read_pairs(data: bytes, starts: Any, ends: Any) -> tuple[bytes, bytes, bytes, bytes, list[bytes], bool] | None: ...
def properties_of(buffer: Any, base: int, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]: ...
def values_of(messages: Sequence[bytes], marks: list[bytes]) -> list[Any]: ...
def take_messages(
    data: bytes, at: int, kind: type[T], broker_name: str, topic: bytes | None, queue_id: int, lowest: int
) -> tuple[list[T], int]: ...
def take_responses(
    data: bytes, at: int, kind: type[T], languages: dict[str, int], other: int
) -> tuple[list[T], int]: ...
def call_listener(
    messages: list[Any],
    at: int,
    end: int,
    listener: Callable[[Any], Any],
    caller: Any,
    call: Any,
    now_s: Callable[[], float],
    until: float,
) -> tuple[int, int, int, Any]: ...
def fill_message(
    message: object,
    rest: bytes,
    broker_name: str,
    host_of: Callable[[bytes], tuple[str, int]],
    queue_of: Callable[[str, str, int], Any],
) -> None: ...
def encode_batch(messages: list[Any], id_prefix: str, id_number: int) -> tuple[bytes, list[str]] | None: ...
def encode_sends(
    messages: list[Any],
    targets: list[tuple[Any, bytes]],
    waiters: list[Any],
    run: Any,
    opaque: int,
    born_ms: int,
    id_prefix: str,
    id_number: int,
    middle: bytes,
    tail: bytes,
    pending: dict[int, Any],
) -> list[bytes]: ...
def take_stored(
    data: bytes, pending: dict[int, Any], kind: type[T], status: Any
) -> tuple[list[tuple[Any, T]], int]: ...

class Fields:
    def __init__(self, kind: type, names: tuple[str, ...]) -> None: ...
    def __call__(self, item: object, values: tuple[Any, ...]) -> None: ...

class Waiter:
    def __init__(self, loop: Any) -> None: ...
    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def cancel(self, msg: object = None) -> bool: ...
    def result(self) -> Any: ...
    def set_result(self, result: Any) -> None: ...
    def __await__(self) -> Generator[Any, None, Any]: ...

def wake_waiters(waiters: list[Waiter]) -> None: ...

class BatchResults(Sequence[T]):
    def __init__(self, ids: list[str], offset_ids: list[str], whole: T, kind: type[T]) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: Any) -> Any: ...
    def give_to(self, waiters: list[Waiter]) -> None: ...

class OpenBatch:
    messages: list[Any]
    waiters: list[Waiter]
    body_bytes: int
    def cancelled(self) -> list[Any]: ...

class OpenBatches:
    open: dict[str, OpenBatch]
    def __init__(
        self,
        loop: Any,
        slots: Slots,
        full: Callable[[], object],
        kind: type,
        body_max: int,
        bytes_max: int,
        record_bytes: int,
    ) -> None: ...
    def take(self, message: object) -> Waiter | None: ...
    def add(self, message: object) -> Waiter | None: ...
