"""A small thread-safe pool of keep-alive HTTP/1.1 connections to one server."""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from workbench.errors import ConnectionFailed, InvalidRequest

_KEEP = 32


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, read whole. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpPool:
    """Connections to one address; each is used by one thread at a time and kept for the next.

    Args:
        url: ``http://host:port[/prefix]``, ``https://...`` or ``host:port``.
        headers: sent with every request.
        connect_timeout_s: how long opening a connection may take.
    """

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None, connect_timeout_s: float = 10.0) -> None:
        self.url = url if "://" in url else f"http://{url}"
        parts = urlsplit(self.url)
        try:
            port = parts.port
        except ValueError as error:
            raise InvalidRequest(f"cannot connect to '{url}': {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(f"'{url}' is not an HTTP address", hint="write http://host:8000")
        self.url = self.url.rstrip("/")
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._headers = dict(headers or {})
        self._connect_timeout_s = connect_timeout_s
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._closed = False

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> Answer:
        """Sends a request and reads the whole answer.

        Raises:
            ConnectionFailed: nobody answers at the address, or no answer within ``timeout_s``.
        """
        all_headers = {**self._headers, **(headers or {})}
        connection, fresh = self._take()
        while True:
            try:
                return self._exchange(connection, (method, self._prefix + path, body, all_headers), timeout_s)
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
                connection.close()
                # The server may have closed an idle connection just now, or crashed in this very request. Only what
                # changes nothing is sent again: an inference or a load must not happen twice.
                if fresh or method != "GET":
                    raise self._failed(error) from error
                connection, fresh = self._open(), True
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                raise self._failed(error, timeout_s) from error
            except BaseException:
                connection.close()
                raise

    @contextmanager
    def stream(
        self, path: str, headers: Mapping[str, str] | None = None, timeout_s: float = 30.0
    ) -> Iterator[http.client.HTTPResponse]:
        """A GET whose answer is read bit by bit, on a connection of its own; ``timeout_s`` is for each read."""
        connection = self._open()
        try:
            if connection.sock is not None:
                connection.sock.settimeout(timeout_s)
            connection.request("GET", self._prefix + path, headers={**self._headers, **(headers or {})})
            yield connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise self._failed(error, timeout_s) from error
        finally:
            connection.close()

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        request: tuple[str, str, bytes, Mapping[str, str]],
        timeout_s: float,
    ) -> Answer:
        method, path, body, headers = request
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        connection.request(method, path, body if body or method == "POST" else None, dict(headers))
        response = connection.getresponse()
        try:
            data = response.read()
        except ConnectionError as error:  # the answer had begun: the request has taken effect and is not sent again
            raise self._failed(error) from error
        answer = Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, data)
        if response.will_close:
            connection.close()
        else:
            self._give(connection)
        return answer

    def _take(self) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._closed:
                raise ConnectionFailed("the client is closed", where=self.url, hint="make a new one")
            while self._idle:
                connection = self._idle.pop()
                if not _dropped(connection):
                    return connection, False
                connection.close()
        return self._open(), True

    def _open(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection
        if self._tls is not None:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self._connect_timeout_s, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._connect_timeout_s)
        try:
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise self._failed(error, self._connect_timeout_s) from error
        return connection

    def _give(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _KEEP:
                self._idle.append(connection)
                return
        connection.close()

    def _failed(self, error: Exception, timeout_s: float = 0.0) -> ConnectionFailed:
        if isinstance(error, TimeoutError):
            return ConnectionFailed(
                f"no answer from {self.url} within {timeout_s:g} s",
                where=self.url,
                hint="the server is busy or hangs; give a longer timeout_s, or look at its log",
            )
        if isinstance(error, http.client.RemoteDisconnected | ConnectionResetError | BrokenPipeError):
            return ConnectionFailed(
                f"the server at {self.url} closed the connection before it answered",
                where=self.url,
                hint="it has stopped or crashed: look at its log",
            )
        if isinstance(error, http.client.HTTPException):
            return ConnectionFailed(
                f"what answers at {self.url} does not speak HTTP ({type(error).__name__})",
                where=self.url,
                hint="is this the gRPC port? Write grpc:// then",
            )
        return ConnectionFailed(
            f"no server answers at {self.url}: {error}",
            where=self.url,
            hint="check that the server runs and that address and port are right",
        )

    def close(self) -> None:
        """Closes what is idle; connections in use are closed when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _dropped(connection: http.client.HTTPConnection) -> bool:
    """Whether the server has closed an idle connection: nothing is due on it, so anything to read is its end."""
    if connection.sock is None:
        return True
    try:
        return bool(select.select([connection.sock], [], [], 0)[0])
    except (OSError, ValueError):
        return True
