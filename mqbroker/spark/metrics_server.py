"""A port from which Prometheus reads a text. What a peer can use of it is bounded: connections, bytes and time."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Callable
from typing import Any

CONNECTIONS_MAX = 16
#: For a request and its response together.
SECONDS_MAX = 10.0
REQUEST_BYTES_MAX = 8192


class MetricsServer(socketserver.ThreadingTCPServer):
    """Answers each GET with `text()`, in threads. A connection beyond CONNECTIONS_MAX is closed at once.

    Raises OSError if the port cannot be used. `now` returns seconds of a clock that never goes back.
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        address: tuple[str, int],
        text: Callable[[], str],
        *,
        seconds_max: float = SECONDS_MAX,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._text, self._seconds_max, self._now = text, seconds_max, now
        self._free = threading.Semaphore(CONNECTIONS_MAX)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, socketserver.BaseRequestHandler)
        self.port: int = self.server_address[1]
        threading.Thread(target=self.serve_forever, name="mqbroker-progress", daemon=True).start()

    def close(self) -> None:
        """Serve no more."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        deadline = self._now() + self._seconds_max
        received = b""
        try:
            while b"\r\n\r\n" not in received and len(received) <= REQUEST_BYTES_MAX:
                request.settimeout(max(0.001, deadline - self._now()))
                if not (data := request.recv(REQUEST_BYTES_MAX)):
                    return
                received += data
            request.settimeout(max(0.001, deadline - self._now()))
            request.sendall(self._response(received))
        except OSError:
            # Too slow, or gone: its connection is closed.
            return

    def _response(self, received: bytes) -> bytes:
        status, body = "200 OK", b""
        if len(received) > REQUEST_BYTES_MAX:
            status = "431 Request Header Fields Too Large"
        elif not received.startswith(b"GET /"):
            status = "405 Method Not Allowed"
        else:
            body = self._text().encode()
        head = (
            f"HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body
