"""A small TCP proxy of our own, which does to a connection what networks do.

It can cut one at a chosen moment, delay, stall, reset and refuse.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Proxy:
    """Forwards to one address, with faults that can be turned on while connections are open.

    `on_request` and `on_answer` see what passes, before it does. Either returns True to cut the
    connection there: what it saw is not passed on. `on_answer` is the moment after the upstream
    did its work and before anybody hears of it. Either may `stall` what it sees just now.
    """

    def __init__(self, host: str, port: int, *, listen: str = "127.0.0.1") -> None:
        self._upstream = (host, port)
        #: Seconds that everything takes longer, each way.
        self.delay = 0.0
        self.on_request: Callable[[bytes], bool] = lambda data: False
        self.on_answer: Callable[[bytes], bool] = lambda data: False
        self.cuts = 0
        self._flows = threading.Event()
        self._flows.set()
        self._refuses = False
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._reset: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server((listen, 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def lead_to(self, host: str, port: int) -> None:
        """New connections go there from now on."""
        self._upstream = (host, port)

    def stall(self) -> None:
        """Nothing passes any more, and nobody is told: no FIN, no RST."""
        self._flows.clear()

    def flow(self) -> None:
        """Everything passes again, what was held up included."""
        self._flows.set()

    def reset_all(self) -> int:
        """An RST to both ends of every connection; how many there were."""
        with self._lock:
            pairs = list(self._pairs)
            self._reset.update(end for pair in pairs for end in pair)
        for pair in pairs:
            for end in pair:
                with suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                    end.shutdown(socket.SHUT_RD)  # wakes the thread that reads it
                    end.close()
        return len(pairs)

    def refuse(self) -> None:
        """Every connection is reset, and so are new ones."""
        self._refuses = True
        self.reset_all()

    def heal(self) -> None:
        """No fault."""
        self.delay, self._refuses = 0.0, False
        self.on_request = self.on_answer = lambda data: False
        self.flow()

    def close(self) -> None:
        """Accept no more, and end what is open."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the accept
        self._listener.close()
        self.heal()
        self.reset_all()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._flows.wait()
        try:
            if self._refuses:
                raise ConnectionRefusedError
            upstream = socket.create_connection(self._upstream, timeout=5)
        except OSError:
            with suppress(OSError):
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            client.close()
            return
        upstream.settimeout(None)
        for end in (client, upstream):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = (client, upstream)
        with self._lock:
            self._pairs.add(pair)
        back = threading.Thread(
            target=self._pump,
            args=(upstream, client, self._sees_answer),
            daemon=True,
        )
        back.start()
        self._pump(client, upstream, self._sees_request)
        back.join()
        with self._lock:
            self._pairs.discard(pair)
            self._reset.difference_update(pair)
        for end in pair:
            end.close()

    # Looked up when something passes: a test sets them while connections are open.
    def _sees_request(self, data: bytes) -> bool:
        return self.on_request(data)

    def _sees_answer(self, data: bytes) -> bool:
        return self.on_answer(data)

    def _pump(
        self, source: socket.socket, sink: socket.socket, look: Callable[[bytes], bool]
    ) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if look(data):
                    self.cuts += 1
                    break
                if self.delay:
                    time.sleep(self.delay)
                self._flows.wait()
                sink.sendall(data)
        for end in {source, sink} - self._reset:  # a FIN before the RST would be a clean end
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy_to(host: str, port: int, *, listen: str = "127.0.0.1") -> Iterator[Proxy]:
    """A proxy in front of an address, for the length of the block."""
    proxy = Proxy(host, port, listen=listen)
    try:
        yield proxy
    finally:
        proxy.close()
