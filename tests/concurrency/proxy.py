"""A small TCP proxy of our own that can cut a connection at a chosen moment."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Proxy:
    """Forwards to one address. `on_request` and `on_answer` see what passes, before it does.

    Either returns True to cut the connection there: what it saw is not passed on. `on_answer`
    is the moment after the upstream did its work and before anybody hears of it.
    """

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self.on_request: Callable[[bytes], bool] = lambda data: False
        self.on_answer: Callable[[bytes], bool] = lambda data: False
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])

    def serve(self) -> None:
        """Accept until closed."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                upstream = socket.create_connection(self._upstream, timeout=5)
            except OSError:
                client.close()
                continue
            upstream.settimeout(None)
            self._forward(client, upstream, self._sees_request)
            self._forward(upstream, client, self._sees_answer)

    def _forward(
        self, source: socket.socket, sink: socket.socket, look: Callable[[bytes], bool]
    ) -> None:
        threading.Thread(target=self._pump, args=(source, sink, look), daemon=True).start()

    # Looked up when something passes: a test sets them while connections are open.
    def _sees_request(self, data: bytes) -> bool:
        return self.on_request(data)

    def _sees_answer(self, data: bytes) -> bool:
        return self.on_answer(data)

    def _pump(
        self,
        source: socket.socket,
        sink: socket.socket,
        look: Callable[[bytes], bool],
    ) -> None:
        try:
            while data := source.recv(65_536):
                if look(data):
                    self.cuts += 1
                    break
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue

    def close(self) -> None:
        """Accept no more."""
        self._listener.close()


@contextmanager
def proxy_to(host: str, port: int) -> Iterator[Proxy]:
    """A proxy in front of an address."""
    proxy = Proxy(host, port)
    thread = threading.Thread(target=proxy.serve, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
