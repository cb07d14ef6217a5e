"""Clients that guess, that send too much, or that never finish: what the console does before it knows who they are."""

from __future__ import annotations

import hashlib
import http.client
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvicorn
from console_client import PASSWORD, USER, console_client, logged_in, with_passwords
from fastapi.testclient import TestClient

from include.ground import http_server
from include.ground.http_server import source_network
from include.ground.ports import free_ports
from include.ground.settings import CLONE, Settings
from include.serve import log_in
from include.serve.console import MOST_BODY_BYTES
from include.serve.log_in import BY_SOURCE, BY_USER, Access, TooManyAttempts, add_user

TOKEN = "a token of more than twenty characters"
OTHER_USER, OTHER_PASSWORD = "eve", "battery staple"


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Access:
    """Log-ins of two users, with a clock of its own and a hash that takes no time."""
    monkeypatch.setattr(
        log_in, "password_hash", lambda given, salt: hashlib.sha256((salt + given).encode()).hexdigest()
    )
    add_user(tmp_path / "passwords", USER, PASSWORD)
    add_user(tmp_path / "passwords", OTHER_USER, OTHER_PASSWORD)
    return Access(tmp_path / "passwords", clock=Clock())


def passed(access: Access, user: str, address: str) -> int:
    """Return 1 for a guess that was compared with the password, 0 for one that was refused before."""
    try:
        access.log_in(user, "a guess", address)
    except TooManyAttempts:
        return 0
    return 1


def after(access: Access, seconds: float) -> None:
    clock = access.clock
    assert isinstance(clock, Clock)
    clock.now += seconds


def test_concurrent_guesses_do_not_pass_the_limit(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow_hash(given: str, salt: str) -> str:
        time.sleep(0.1)
        return given + salt

    monkeypatch.setattr(log_in, "password_hash", slow_hash)
    with ThreadPoolExecutor(60) as pool:
        found = list(pool.map(lambda _: passed(access, USER, "192.0.2.1"), range(60)))
    assert sum(found) == BY_SOURCE.free


def test_addresses_of_this_machine_are_one_source(access: Access) -> None:
    addresses = [*(f"127.0.{n}.{n}" for n in range(30)), "::1", "::ffff:127.0.0.9"]
    assert sum(passed(access, f"user{n}", address) for n, address in enumerate(addresses)) == BY_SOURCE.free


def test_addresses_of_one_client_with_ipv6_are_one_source(access: Access) -> None:
    assert sum(passed(access, f"user{n}", f"2001:db8::{n:x}") for n in range(30)) == BY_SOURCE.free


def test_own_log_ins_do_not_reset_the_failures_of_a_source(access: Access) -> None:
    guesses = 0
    for number in range(40):
        guesses += passed(access, USER, "192.0.2.1")
        if number % 4 == 3:
            try:
                access.log_in(OTHER_USER, OTHER_PASSWORD, "192.0.2.1")
            except TooManyAttempts:
                continue
    assert guesses == BY_SOURCE.free


def test_guesses_at_a_user_from_many_networks_are_limited(access: Access) -> None:
    assert sum(passed(access, USER, f"192.0.2.{n}") for n in range(100)) == BY_USER.free


def test_guesses_at_many_users_from_many_networks_are_slowed_down(access: Access) -> None:
    count = sum(passed(access, f"user{n}", f"10.0.{n // 250}.{n % 250}") for n in range(300))
    assert count == 100
    after(access, 1.0)
    assert [passed(access, f"another{n}", f"10.1.0.{n}") for n in range(3)] == [1, 0, 0]


def test_each_further_failure_waits_longer(access: Access) -> None:
    waits = []
    for _ in range(BY_SOURCE.free):
        passed(access, USER, "192.0.2.1")
    for _ in range(5):
        with pytest.raises(TooManyAttempts) as raised:
            access.log_in(USER, PASSWORD, "192.0.2.1")
        waits.append(raised.value.seconds)
        after(access, raised.value.seconds)
        assert passed(access, USER, "192.0.2.1")
    assert waits == [60.0, 120.0, 240.0, 480.0, 900.0]


def test_others_who_guess_lock_no_user_out_where_he_has_logged_in(access: Access) -> None:
    assert access.log_in(USER, PASSWORD, "198.51.100.1")
    for n in range(100):
        passed(access, USER, f"192.0.2.{n}")
    assert access.log_in(USER, PASSWORD, "198.51.100.1")
    with pytest.raises(TooManyAttempts):
        access.log_in(USER, PASSWORD, "198.51.100.2")


def test_log_in_that_succeeds_is_no_failure(access: Access) -> None:
    for _ in range(20):
        assert access.log_in(USER, PASSWORD, "192.0.2.1")


def test_session_goes_on_while_others_guess(access: Access) -> None:
    token = access.log_in(USER, PASSWORD, "192.0.2.1")
    for _ in range(20):
        passed(access, USER, "192.0.2.1")
    assert token is not None
    assert access.session(token) is not None


@pytest.mark.parametrize(
    ("address", "network"),
    [
        *(("127.0.0.1", "this machine"), ("127.9.9.9", "this machine"), ("::1", "this machine")),
        *(("::ffff:127.0.0.1", "this machine"), ("192.0.2.7", "192.0.2.7"), ("::ffff:192.0.2.7", "192.0.2.7")),
        *(("2001:db8::1", "2001:db8::/64"), ("fe80::1%eth0", "fe80::/64"), ("testclient", "testclient"), ("", "")),
    ],
)
def test_network_of_an_address(address: str, network: str) -> None:
    assert source_network(address) == network


def changed(path: Path, change: str) -> None:
    """Change a password file in one of the ways in which a user loses his access."""
    lines = path.read_text().splitlines(keepends=True)
    if change == "removed":
        path.write_text("".join(line for line in lines if not line.startswith(f"{USER}:")))
    elif change == "another password":
        add_user(path, USER, f"another {PASSWORD}")
    elif change == "file removed":
        path.unlink()
    else:
        path.chmod(0o644)


@pytest.mark.parametrize("change", ["removed", "another password", "file removed", "file readable by others"])
def test_session_ends_with_the_users_entry(settings: Settings, tmp_path: Path, change: str) -> None:
    given = with_passwords(settings, tmp_path)
    assert given.console_passwords is not None
    with console_client(given, host="192.0.2.7") as client:
        logged_in(client)
        assert client.get("/").status_code == 200
        changed(given.console_passwords, change)
        for path in ("/", "/sql?q=select+1", "/live/overview", "/tables"):
            answer = client.get(path)
            assert (answer.status_code, answer.headers["location"]) == (303, "/log-in"), path


def test_sessions_of_others_stay(settings: Settings, tmp_path: Path) -> None:
    given = with_passwords(settings, tmp_path)
    assert given.console_passwords is not None
    with console_client(given, host="192.0.2.7") as client:
        logged_in(client)
        add_user(given.console_passwords, OTHER_USER, OTHER_PASSWORD)
        assert client.get("/").status_code == 200


@pytest.fixture
def client(settings: Settings, tmp_path: Path) -> Iterator[TestClient]:
    """A client of a console with users and a token."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    given = with_passwords(settings, tmp_path).model_copy(update={"api_token_file": tmp_path / "token"})
    with console_client(given) as found:
        yield found


class Body:
    """A body in chunks that counts how many of them were read."""

    def __init__(self, chunks: int) -> None:
        self.chunks, self.read = chunks, 0

    def __iter__(self) -> Iterator[bytes]:
        for _ in range(self.chunks):
            self.read += 1
            yield b"x" * 10_000


def paths_that_take_a_body(client: TestClient) -> list[tuple[str, str]]:
    """Return method and address of each route that is no GET."""
    routes = client.app.routes  # type: ignore[attr-defined]
    found = [(method, route.path) for route in routes for method in getattr(route, "methods", None) or ()]
    return [(method, path.replace("{", "").replace("}", "")) for method, path in found if method not in ("GET", "HEAD")]


def test_no_route_takes_a_body_beyond_the_bound(client: TestClient) -> None:
    routes, bearer = paths_that_take_a_body(client), {"Authorization": f"Bearer {TOKEN}"}
    assert len(routes) > 10
    logged_in(client)
    for method, path in [*routes, ("POST", "/sql"), ("PUT", "/nothing"), ("GET", "/sql")]:
        answer = client.request(method, path, content=b"x" * (MOST_BODY_BYTES + 1), headers=bearer)
        assert answer.status_code == 413, (method, path)


def test_chunked_body_ends_at_the_bound(client: TestClient) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    body = b"".join(Body(10))
    for path in ("/log-in", "/api/v1/audits", "/api/v1/backfills"):
        answer = client.post(path, content=iter([body]), headers=bearer)
        assert answer.status_code == 413, path


def test_api_refuses_before_it_reads(client: TestClient) -> None:
    for path in ("/api/v1/audits", "/api/v1/backfills", "/api/v1/nothing"):
        answer = client.post(path, content=b"{" * MOST_BODY_BYTES, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["error"]) == (401, "the token is wrong"), path


@contextmanager
def served(module: str, state: Path, descriptors: int) -> Iterator[tuple[int, psutil.Process]]:
    """Run a server with few file descriptors; yield its port and its process once it answers."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    (port,) = free_ports(1)
    (state / "token").write_text(f"{TOKEN}\n")
    known = {"HEADRACE_STATE": str(state), "HEADRACE_API_TOKEN_FILE": str(state / "token")}
    command = [sys.executable, "-m", module, "127.0.0.1", str(port)]
    server = subprocess.Popen(command, cwd=CLONE, env={**os.environ, **known}, preexec_fn=limit)
    try:
        until = time.monotonic() + 90
        while not answers(port):
            assert time.monotonic() < until
            time.sleep(0.2)
        yield port, psutil.Process(server.pid)
    finally:
        server.terminate()
        assert server.wait(20) in (0, -15)


def answers(port: int) -> bool:
    try:
        return asked(port)[0] == 200
    except OSError:
        return False


def asked(port: int, path: str = "/health") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


UNFINISHED = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    b"POST /log-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\nuser=",
    b"",
)


@pytest.mark.parametrize("module", ["include.serve.console", "include.observe.metrics"])
def test_unfinished_requests_keep_no_other_from_its_answer(tmp_path: Path, module: str) -> None:
    with served(module, tmp_path, 256) as (port, _), ExitStack() as held:
        for number in range(300):
            each = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            # Some are closed already, to make room.
            with suppress(OSError):
                each.sendall(UNFINISHED[number % len(UNFINISHED)])
        began = time.monotonic()
        assert asked(port)[0] == 200
        assert time.monotonic() - began < 2


@pytest.mark.parametrize("text", UNFINISHED)
def test_unfinished_request_is_ended(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "WITHIN", dict.fromkeys(http_server.WITHIN, 1.0))
    (port,) = free_ports(1)
    monkeypatch.setattr("uvicorn.Server.install_signal_handlers", lambda _: None, raising=False)
    config = uvicorn.Config(plain_application, port=port, http=protocol_of_server(), ws="none", log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        assert 0.9 < seconds_until_closed(port, text) < 4
    finally:
        server.should_exit = True
        thread.join()


def protocol_of_server() -> Any:
    return http_server.BoundedConnection


async def plain_application(scope: Any, receive: Any, send: Any) -> None:
    """Read the whole body, then answer."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def seconds_until_closed(port: int, text: bytes) -> float:
    """Send the beginning of a request, then a byte now and again; return how long the server takes it."""
    with socket.create_connection(("127.0.0.1", port), timeout=0.2) as connection:
        began = time.monotonic()
        connection.sendall(text)
        while time.monotonic() - began < 60:
            try:
                if not connection.recv(1000):
                    break
            except TimeoutError:
                if text:
                    connection.sendall(b"x")
            except OSError:
                break
        return time.monotonic() - began


def test_body_without_a_token_takes_no_memory(tmp_path: Path) -> None:
    with served("include.serve.console", tmp_path, 256) as (port, process):
        before, most = process.memory_info().rss, 0
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            head = "POST /api/v1/audits HTTP/1.1\r\nHost: localhost\r\nContent-Length: 600000000\r\n\r\n"
            connection.sendall(head.encode())
            for _ in range(100):
                try:
                    connection.sendall(b"x" * 1_000_000)
                except OSError:
                    break
                most = max(most, process.memory_info().rss)
        assert most - before < 50_000_000


def test_clients_share_the_log_in_limit_of_a_real_server(client: TestClient) -> None:
    found: Counter[int] = Counter()
    lock = threading.Lock()

    def guess(number: int) -> None:
        status = client.post("/log-in", data={"user": USER, "password": f"guess {number}"}).status_code
        with lock:
            found[status] += 1

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(guess, range(60)))
    assert found == {403: BY_SOURCE.free, 429: 60 - BY_SOURCE.free}
