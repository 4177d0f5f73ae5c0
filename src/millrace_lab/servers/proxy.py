"""A TCP proxy that can fail as a network does."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """Forwards connections on a port of its own to a target."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.target: tuple[str, int] | None = None
        self.renamed: tuple[bytes, bytes] | None = None
        """Bytes of requests, and what arrives instead; of the same length."""
        self.requests = 0
        """Times that something was sent to the target."""
        self._forwards = threading.Event()
        self._forwards.set()
        self._lost_answers = 0
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """From now on nothing arrives on either side, and nobody is told."""
        self._forwards.clear()

    def mend(self) -> None:
        """New connections work again; those of before are gone."""
        for each in list(self._sockets):
            _close(each)
        self._forwards.set()

    def lose_answers(self, number: int) -> None:
        """Hand the next requests over, and drop the connections that their answers come on."""
        self._lost_answers = number

    def reset(self) -> None:
        self.renamed, self._lost_answers = None, 0
        self.mend()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._sockets.add(client)
        self._forwards.wait()
        server = None
        try:
            assert self.target is not None, "no server was asked for"
            server = socket.create_connection(self.target)
            self._sockets.add(server)
            back = threading.Thread(target=self._answer, args=(server, client), daemon=True)
            back.start()
            with contextlib.suppress(OSError):
                while data := client.recv(65536):
                    self._forwards.wait()
                    if self.renamed is not None:
                        data = data.replace(*self.renamed)
                    self.requests += 1
                    server.sendall(data)
                server.shutdown(socket.SHUT_WR)
            back.join()
        except OSError:
            # No server behind the proxy: the client sees its connection end.
            pass
        finally:
            for each in (client, server):
                if each is not None:
                    _close(each)
                    self._sockets.discard(each)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                self._forwards.wait()
                if self._lost_answers > 0:
                    self._lost_answers -= 1
                    break
                client.sendall(data)
        _close(client)
        _close(server)


def _close(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
