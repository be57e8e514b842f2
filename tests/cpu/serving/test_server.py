"""The server of the live page: whom it answers, what it gives up, and that many questions at once do not end it."""

import contextlib
import http.client
import json
import socket
import threading
import time

import patience
import pytest

from snugfit.errors import InputError
from snugfit.serving.desk import MOST_WAITING, Desk
from snugfit.serving.server import Server
from snugfit.workers.pool import Cancelled


@contextlib.contextmanager
def served(answer):
    desk = Desk(answer)
    server = Server("<p>the page</p>", desk)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        desk.close()
        thread.join()


def wait_for(condition):
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def at_once(asked, warm, search):
    if asked.get("model") == "wrong":
        raise InputError("model is 'wrong'.")
    if asked.get("model") == "broken":
        raise ZeroDivisionError("by nothing")
    yield {"doing": "working"}
    yield {"page": asked}


@pytest.fixture(scope="module")
def server():
    with served(at_once) as found:
        yield found


def request(server, method="GET", path=None, body=None, **headers):
    """Sends one request, and returns status and body."""
    connection = http.client.HTTPConnection(*server.server_address, timeout=30)
    given = {"Host": server.hosts[0], **{name.replace("_", "-"): value for name, value in headers.items()}}
    connection.putrequest(method, f"/{server.token}/" if path is None else path, skip_host=True)
    for name, value in given.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    return answer.status, answer.read()


def ask(server, asked, tab="a", **headers):
    body = json.dumps({"tab": tab, "asked": asked}).encode()
    how = {"Content_Type": "application/json", "Content_Length": str(len(body)), **headers}
    return request(server, "POST", f"/{server.token}/answers", body, **how)


def test_the_page_and_its_answers(server):
    assert (
        server.server_address[0] == "127.0.0.1" and server.url.endswith(f"/{server.token}/") and len(server.token) >= 32
    )
    assert request(server) == (200, b"<p>the page</p>")
    for origin in (
        {},
        {"Origin": f"http://{server.hosts[0]}"},
        {"Host": server.hosts[1], "Origin": f"http://{server.hosts[1]}"},
    ):
        status, lines = ask(server, {"model": "a"}, **origin)
        assert (status, [json.loads(line) for line in lines.splitlines()]) == (
            200, [{"doing": "working"}, {"page": {"model": "a"}}],
        )  # fmt: skip


def test_errors_are_said_in_the_answer(server):
    assert json.loads(ask(server, {"model": "wrong"})[1]) == {"error": "model is 'wrong'."}
    assert "ZeroDivisionError" in json.loads(ask(server, {"model": "broken"})[1])["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/", "/answers", "/x/", "/TOKEN", "/TOKEN/answers", "/TOKEN/x", "/TOKEN//", "/TOKEN/?a", "/TOKEN/.", "/x/../TOKEN/",
        "/TOKEN/../../etc/passwd", "/TOKEN/%2e%2e/%2e%2e/etc/passwd", "/TOKEN/..\\..\\x", "/token/", "http://127.0.0.1/TOKEN/",
    ],
)  # fmt: skip
def test_nothing_but_the_exact_address_is_answered(server, path):
    assert request(server, path=path.replace("TOKEN", server.token))[0] == 404


def test_foreign_hosts_and_origins_are_refused(server):
    for headers in (
        {"Host": "evil.example"}, {"Host": f"evil.example:{server.server_port}"}, {"Host": "127.0.0.1"}, {"Host": ""},
        {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": f"https://{server.hosts[0]}"},
    ):  # fmt: skip
        assert request(server, **headers)[0] == 403
        assert ask(server, {"model": "a"}, **headers)[0] == 403
    assert request(server, "POST", path=f"/{server.token}/", Content_Length="0")[0] == 404


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"{", {}),
        (b"[]", {}),
        (b'{"tab": "a"}', {}),
        (b'{"tab": "a", "asked": [1]}', {}),
        (b"[" * 9000, {}),
        (b" " * 10_001, {}),
        (b"{}", {"Content_Type": "text/plain"}),
        (b"", {"Content_Length": "-5"}),
        (b"", {"Content_Length": "many"}),
    ],
)
def test_what_is_no_question_is_refused(server, body, headers):
    how = {"Content_Type": "application/json", "Content_Length": str(len(body)), **headers}
    assert request(server, "POST", f"/{server.token}/answers", body, **how)[0] == 400


def test_a_line_a_request_and_no_token_in_it(server, capsys):
    request(server)
    with socket.create_connection(server.server_address) as raw:
        raw.sendall(b"GET /a\x1b[2J HTTP/1.1\r\nHost: " + server.hosts[0].encode() + b"\r\n\r\n")
        assert b" 404 " in raw.recv(4096)
    ask(server, {"model": "a"})
    said = []
    wait_for(lambda: said.append(capsys.readouterr().err) or "POST /TOKEN/answers 200 done" in "".join(said))
    lines = "".join(said).splitlines()
    assert all(line.startswith("snugfit: ") and line.isprintable() for line in lines)
    assert [line.rpartition(" 404 ")[0] for line in lines if " /a" in line and "GET" in line] == ["snugfit: GET /a?[2J"]
    assert sum(line.startswith("snugfit: GET /TOKEN/ 200 ") for line in lines) == 1
    assert server.token not in "".join(lines)


def test_fifty_questions_at_once():
    def slowly(asked, warm, search):
        time.sleep(0.02)
        yield {"page": asked}

    with served(slowly) as server:
        found = []
        threads = [
            threading.Thread(target=lambda tab=tab: found.append(ask(server, {"model": tab}, tab=tab)))
            for tab in map(str, range(50))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        statuses = [status for status, _ in found]
        assert len(statuses) == 50 and set(statuses) <= {200, 503} and statuses.count(200) >= MOST_WAITING
        assert ask(server, {"model": "a"})[0] == 200


def test_a_closed_tab_and_a_newer_question_end_the_search():
    ended = []

    def searching(asked, warm, search):
        yield {"doing": asked["model"]}
        if asked["model"] == "quick":
            return
        try:
            search.call(time.sleep, patience.SECONDS)
        except Cancelled:
            ended.append(asked["model"])
            raise

    def begun(model, tab):
        body = json.dumps({"tab": tab, "asked": {"model": model}})
        head = f"POST /{server.token}/answers HTTP/1.1\r\nHost: {server.hosts[0]}\r\nContent-Type: application/json\r\n"
        connection = socket.create_connection(server.server_address, timeout=30)
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        said = b""
        while b"doing" not in said:
            said += connection.recv(4096)
        return connection

    with served(searching) as server:
        begun("closed", "a").close()
        wait_for(lambda: ended == ["closed"])
        with begun("older", "b"):
            assert ask(server, {"model": "quick"}, tab="b")[0] == 200
            assert ended == ["closed", "older"]
