"""TCP ports on the loopback address, and whether the master of a Spark cluster answers."""

from __future__ import annotations

import os
import socket
import xml.etree.ElementTree as ElementTree
from contextlib import ExitStack
from pathlib import Path
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


def given_port(text: str) -> int:
    """Return the port that HEADRACE_CONSOLE or HEADRACE_METRICS names, 0 for none."""
    return int(text) if text.isdecimal() else 0


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


STANDALONE, YARN = "spark://", "yarn"
HADOOP_CONF = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Variables that name the folder of Hadoop's configuration; Spark reads the first one that is set."""
RESOURCE_MANAGER = "yarn.resourcemanager."
ANSWER_SECONDS = 5.0
EXECUTOR_SECONDS = 120.0
"""How long a driver waits for its first executor."""


class MasterUnreachable(Transient):
    """No host of HEADRACE_SPARK_MASTER answers."""

    def __init__(self, master: str, why: str) -> None:
        super().__init__(
            f"the Spark master {master} does not answer ({why}); nothing was read",
            "start the master, or correct HEADRACE_SPARK_MASTER (docs/how-to/run-on-a-cluster.md)",
        )
        self.master = master


class HadoopUnknown(Terminal):
    """The folder of Hadoop's configuration is not set, or lacks what a session on YARN needs."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"HEADRACE_SPARK_MASTER=yarn: {what}; nothing was started",
            f"export {HADOOP_CONF[0]}=/etc/hadoop/conf   (core-site.xml and yarn-site.xml of the cluster)",
        )


def hadoop_properties(file: str) -> dict[str, str]:
    """Return the properties of a file of Hadoop's configuration. Raises HadoopUnknown."""
    folder = next((found for name in HADOOP_CONF if (found := os.environ.get(name))), None)
    if folder is None:
        raise HadoopUnknown(f"neither {' nor '.join(HADOOP_CONF)} is set")
    try:
        root = ElementTree.parse(Path(folder, file)).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise HadoopUnknown(f"{Path(folder, file)} cannot be read ({error})") from error
    return {each.findtext("name", ""): each.findtext("value", "") for each in root.iter("property")}


def master_addresses(master: str) -> list[str]:
    """Return host:port of each server of a master; none of Kubernetes, which answers only who is logged in.

    Raises HadoopUnknown.
    """
    if master.startswith(STANDALONE):
        return master.removeprefix(STANDALONE).split(",")
    if master != YARN:
        return []
    # With several resource managers each property ends with the id of one.
    properties = hadoop_properties("yarn-site.xml")
    named = {key.removeprefix(RESOURCE_MANAGER): value for key, value in properties.items()}
    found = [value for key, value in named.items() if key == "address" or key.startswith("address.")]
    hosts = [f"{value}:8032" for key, value in named.items() if key == "hostname" or key.startswith("hostname.")]
    if not (found or hosts):
        raise HadoopUnknown(f"yarn-site.xml has neither {RESOURCE_MANAGER}address nor {RESOURCE_MANAGER}hostname")
    return found or hosts


def require_master(settings: Settings) -> None:
    """Raise MasterUnreachable unless a server of the master accepts connections; HadoopUnknown."""
    addresses = master_addresses(settings.spark_master)
    why = ""
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
        except (OSError, OverflowError, ValueError) as error:
            why = f"{address}: {error}"
        else:
            return
    if addresses:
        raise MasterUnreachable(settings.spark_master, why)
