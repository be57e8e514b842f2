"""A small server for one person: on 127.0.0.1 alone, behind a token, and for no other site's pages.

The standard library's: there are two addresses, a page and a stream of lines, for the one who started it, and a framework
would be three more packages to keep. `Host` is checked because a foreign name may lead to 127.0.0.1 (DNS rebinding),
`Origin` because any page may send a form here. No address is ever looked up as a file.
"""

from __future__ import annotations

import json
import secrets
import select
import socket
import sys
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from snugfit.errors import SnugfitError, in_words
from snugfit.serving.desk import BusyError, Desk, Question
from snugfit.workers.pool import Cancelled

ADDRESS = "127.0.0.1"
_MOST_BYTES = 10_000
"""Of a question."""
_LOOK_SECONDS = 0.1
"""How often it is looked whether whoever asked is still there."""


class Server(ThreadingHTTPServer):
    """Serves a page under a token, and answers what it asks."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, page: str, desk: Desk, port: int = 0) -> None:
        """Binds to a port; 0: one that is free. `OSError` where it is taken."""
        self.page, self.desk, self.token = page.encode(), desk, secrets.token_urlsafe(24)
        super().__init__((ADDRESS, port), _Handler)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{ADDRESS}:{self.server_port}/{self.token}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """What `Host` may be."""
        return tuple(f"{name}:{self.server_port}" for name in (ADDRESS, "localhost"))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no error to be told of."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "snugfit", ""
    timeout = 60

    def do_GET(self) -> None:
        self._begin = time.perf_counter()
        if self._may("/"):
            self._reply(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")

    def do_POST(self) -> None:
        self._begin = time.perf_counter()
        if not self._may("/answers"):
            return
        try:
            length = int(self.headers.get("Content-Length", ""))
            if self.headers.get_content_type() != "application/json" or not 0 < length <= _MOST_BYTES:
                raise ValueError
            given = json.loads(self.rfile.read(length))
            tab, asked = str(given["tab"]), {str(name): str(value) for name, value in given["asked"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return self._refuse(HTTPStatus.BAD_REQUEST)
        self._answer(tab, asked)

    def _may(self, address: str) -> bool:
        """Refuses what is not from the page of this server; exact addresses, so that there is no path to play with."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if host not in self.server.hosts or origin not in (None, *(f"http://{name}" for name in self.server.hosts)):
            self._refuse(HTTPStatus.FORBIDDEN)
        elif not secrets.compare_digest(self.path.encode(), f"/{self.server.token}{address}".encode()):
            self._refuse(HTTPStatus.NOT_FOUND)
        else:
            return True
        return False

    def _answer(self, tab: str, asked: Mapping[str, str]) -> None:
        question = Question()
        threading.Thread(target=_watch, args=(self.connection, question), daemon=True).start()
        begun = False

        def send(found: Mapping[str, Any]) -> None:
            nonlocal begun
            if not begun:
                self.send_response_only(HTTPStatus.OK)
                self._headers("application/x-ndjson")
                begun = True
            self.wfile.write(json.dumps(found, separators=(",", ":"), allow_nan=False).encode() + b"\n")

        end = "done"
        try:
            self.server.desk.ask(tab, question, asked, send)
        except BusyError:
            return self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)
        except (Cancelled, OSError):
            question.cancel()
            end = "given up"
        except SnugfitError as error:
            end = "refused"
            send({"error": str(error)})
        except Exception as error:
            end = f"failed: {in_words(error)}"
            send({"error": f"snugfit failed ({in_words(error)}). That is a fault of snugfit."})
        finally:
            question.ended.set()
        self._log(f"{HTTPStatus.OK:d} {end}")

    def _reply(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response_only(status)
        self._headers(kind, ("Content-Length", str(len(body))))
        self.wfile.write(body)
        self._log(f"{status:d}")

    def _headers(self, kind: str, *more: tuple[str, str]) -> None:
        stays = (
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
        )
        for name, value in (
            ("Content-Type", kind),
            *stays,
            ("X-Frame-Options", "DENY"),
            ("Connection", "close"),
            *more,
        ):
            self.send_header(name, value)
        self.end_headers()

    def _refuse(self, status: HTTPStatus) -> None:
        self._reply(status, status.phrase.encode(), "text/plain; charset=utf-8")

    def _log(self, end: str) -> None:
        """One line for each request; the token is not in it."""
        path = self.path.replace(self.server.token, "TOKEN")[:80]
        line = f"snugfit: {self.command} {path} {end} {time.perf_counter() - self._begin:.2f} s"
        sys.stderr.write("".join(one if one.isprintable() else "?" for one in line) + "\n")
        sys.stderr.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """What the library would log of broken requests is not ours to repeat."""


def _watch(connection: socket.socket, question: Question) -> None:
    """Gives a question up when its browser has closed the connection."""
    while not question.ended.wait(_LOOK_SECONDS):
        try:
            ready, _, _ = select.select([connection], [], [], 0)
            gone = bool(ready) and not connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            gone = True
        if gone:
            return question.cancel()
