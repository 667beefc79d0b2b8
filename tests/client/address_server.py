"""An HTTP address server on loopback."""

import socket
import threading
from contextlib import suppress
from typing import Any


class Listing:
    """Answers each request with what `response` is at the time: bytes, or None for no answer at all."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/rocketmq/nsaddr"
        self.response: bytes | None = b""
        self.asked: list[str] = []
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def lists(self, text: str) -> None:
        self.response = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n" + text.encode()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            request = b""
            while b"\r\n\r\n" not in request:
                more = connection.recv(65536)
                assert more, "the client closed the connection within its request"
                request += more
            self.asked.append(request.split()[1].decode())
            if self.response is None:
                self._held.append(connection)
                continue
            # A client that refuses a response closes the connection before it has read all.
            with connection, suppress(OSError):
                connection.sendall(self.response)
                connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        for connection in self._held:
            connection.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
