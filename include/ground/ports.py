"""TCP ports on the loopback address, and whether the master of a Spark cluster answers."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Any

import psutil

from include.ground.errors import Terminal, Transient
from include.ground.settings import Settings

LOOPBACK = "127.0.0.1"


class PortInUse(Terminal):
    """A requested port is in use; `holder` names the process if the system shows it."""

    def __init__(self, port: int, holder: str, process: str = "broker", setting: str = "HEADRACE_KAFKA_PORT") -> None:
        super().__init__(
            f"port {port} is in use{f' by {holder}' if holder else ''}; the {process} was not started",
            f"stop that process, or choose another {setting} (0: a free one)",
        )
        self.port, self.holder = port, holder


def refuse_unusable_host(host: str, process: str) -> None:
    """Raise Terminal (`address-unusable`) unless a server of this machine could listen at the host."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as bound:
            bound.bind(address)
    except (OSError, UnicodeError) as error:
        raise Terminal(
            f"the {process} cannot listen at {host[:100]!r}: {error}; it was not started",
            f"--host {LOOPBACK}, or an address of this machine (0.0.0.0: all of them)",
            code="address-unusable",
        ) from error


def listener(port: int) -> socket.socket:
    """Return a socket bound to the port (0: a free one) as a server's. Raises OSError when it is in use."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((LOOPBACK, port))
        bound.listen(1)
    except OSError:
        bound.close()
        raise
    return bound


def is_free(port: int) -> bool:
    """Return whether a server could listen on the port now."""
    try:
        listener(port).close()
    except OSError:
        return False
    return True


def is_open(port: int, host: str = LOOPBACK) -> bool:
    """Return whether something listens on the port."""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    """Return different ports that are free now."""
    with ExitStack() as held:
        return [held.enter_context(listener(0)).getsockname()[1] for _ in range(count)]


def chosen_port(stored: int, requested: int, process: str, setting: str) -> int:
    """Return the requested port (PortInUse), else that of the last start if it is free, else a new one."""
    if requested and not is_free(requested):
        raise PortInUse(requested, holder_of(requested), process, setting)
    return requested or (stored if stored and is_free(stored) else free_ports(1)[0])


def holder_of(port: int) -> str:
    """Return the process that listens on the port, `pid 123 (java)`; "" when the system does not show it."""
    try:
        found = [conn.pid for conn in psutil.net_connections("tcp") if is_listener(conn, port) and conn.pid]
        return f"pid {found[0]} ({psutil.Process(found[0]).name()})" if found else ""
    except (psutil.Error, OSError):
        return ""


def is_listener(connection: Any, port: int) -> bool:
    """Return whether a connection that psutil lists is a server on the port."""
    return bool(connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port)


STANDALONE = "spark://"
ANSWER_SECONDS = 5.0
EXECUTOR_SECONDS = 120.0
"""How long a driver waits for its first executor."""


class MasterUnreachable(Transient):
    """No host of HEADRACE_SPARK_MASTER answers."""

    def __init__(self, master: str, why: str) -> None:
        super().__init__(f"the Spark master {master} does not answer ({why}); nothing was read", "headrace doctor")
        self.master = master


def require_master(settings: Settings) -> None:
    """Raise MasterUnreachable unless a host of a standalone master accepts connections. Other masters are not tried."""
    if not settings.spark_master.startswith(STANDALONE):
        return
    why = ""
    for address in settings.spark_master.removeprefix(STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
        except (OSError, OverflowError) as error:
            why = str(error)
        else:
            return
    raise MasterUnreachable(settings.spark_master, why)
