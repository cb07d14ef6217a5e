"""The embedded Kafka broker: one KRaft node in a separate JVM, on the loopback address.

Guarantee: one cluster id for the life of the state folder; topics survive SIGKILL.
After a crash: the runner restarts it, Kafka recovers its logs. Missing storage is an error, never an empty start.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import string
import subprocess
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from include.ground.durable_files import write_atomically
from include.ground.errors import Terminal
from include.ground.java import LOCK, Java, find_java, read_jar_list, require_jars
from include.ground.kafka import BrokerUnreachable, cluster_id
from include.ground.paths import kafka_path
from include.ground.ports import LOOPBACK, chosen_port, free_ports, is_free, is_open
from include.ground.settings import CLONE, Settings
from include.run.child_process import spawn
from include.state.json_file import JsonFile
from include.state.process_states import BROKER
from include.state.run_files import RunFile

CONFIGURATION = CLONE / "infra" / "kafka"
# C1 only: the broker copies bytes, it starts in half the time with a third less CPU.
JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:+ExitOnOutOfMemoryError")
# Kafka's own default: the operating system decides when records reach the disk.
NEVER = 2**63 - 1
LIMITS = ("-XX:MaxMetaspaceSize=96m", "-XX:ReservedCodeCacheSize=48m", "-XX:MaxDirectMemorySize=64m")


@dataclass(frozen=True)
class BrokerNode:
    """The broker's cluster id and ports, stored between starts; ports are 0 before the first."""

    cluster_id: str
    port: int = 0
    controller_port: int = 0
    formatted: bool = False


def start_broker(settings: Settings) -> RunFile:
    """Start the broker; return its run file (extra: bootstrap, port, cluster_id). It answers later, see `answers`.

    Errors: those of `check_broker_prerequisites`, and what `format_storage` raises.
    """
    java, node = check_broker_prerequisites(settings)
    shutil.rmtree(temporary_path(settings), ignore_errors=True)
    temporary_path(settings).mkdir(parents=True)
    write_properties(settings, node)
    write_node(settings, format_storage(settings, java, node))
    extra = {"bootstrap": f"{LOOPBACK}:{node.port}", "port": node.port, "cluster_id": node.cluster_id}
    return spawn(settings, BROKER, broker_command(settings, java), kafka_path(settings), os.environ, extra)


def check_broker_prerequisites(settings: Settings) -> tuple[Java, BrokerNode]:
    """Return the node and Java with which the broker would start; nothing is changed.

    Errors: JavaMissing, PortInUse, and what `require_jars` and `read_node` raise.
    """
    java = find_java(os.environ)
    require_jars(settings.jars, "broker", read_jar_list(LOCK, hashed=True))
    return java, assign_ports(read_node(settings), settings.kafka_port)


def node_file(settings: Settings) -> JsonFile[BrokerNode]:
    """Return the file of the cluster id and the ports. Without it Kafka's own storage still has the cluster id."""
    path = kafka_path(settings) / "node.json"
    return JsonFile(path, BrokerNode, remedy=f'rm "{path}", then headrace up', consequence="no broker was started")


def data_path(settings: Settings) -> Path:
    """Folder of Kafka's logs."""
    return kafka_path(settings) / "data"


def temporary_path(settings: Settings) -> Path:
    """Folder of the broker's temporary files: native libraries, which a killed JVM leaves. Emptied at each start."""
    return kafka_path(settings) / "temporary"


def read_node(settings: Settings) -> BrokerNode:
    """Return the stored node, or a new one. Raises Terminal when it was formatted and the data is gone."""
    node = node_file(settings).read() or BrokerNode(new_cluster_id())
    if node.formatted and not (data_path(settings) / "meta.properties").exists():
        folder, file = data_path(settings), node_file(settings).path
        raise Terminal(
            f"the broker's data is gone from {folder}, where it was created before; no empty broker was started",
            f'restore {folder}, or start with an empty broker: rm "{file}"',
            code="broker-data-missing",
        )
    return node


def write_node(settings: Settings, node: BrokerNode) -> None:
    """Store the node for the next start."""
    node_file(settings).write(node)


def new_cluster_id() -> str:
    """Return a random id in Kafka's format: 22 characters of URL-safe base64, no leading dash."""
    text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return new_cluster_id() if text.startswith("-") else text


def assign_ports(node: BrokerNode, requested: int) -> BrokerNode:
    """Return the node with ports: the requested (PortInUse), else those of the last start if free, else new ones."""
    port = chosen_port(node.port, requested, "broker", "HEADRACE_KAFKA_PORT")
    usual = node.controller_port
    reusable = usual and usual != port and is_free(usual)
    other = usual if reusable else next(each for each in free_ports(2) if each != port)
    return replace(node, port=port, controller_port=other)


def write_properties(settings: Settings, node: BrokerNode) -> None:
    """Write Kafka's configuration from the template in infra/kafka."""
    template = string.Template((CONFIGURATION / "server.properties").read_text())
    flush = 1 if settings.is_power_safe else NEVER
    text = template.substitute(port=node.port, controller_port=node.controller_port, flush=flush)
    write_atomically(kafka_path(settings) / "server.properties", text)


def format_storage(settings: Settings, java: Java, node: BrokerNode) -> BrokerNode:
    """Format Kafka's storage the first time; an interrupted format is repeated with the same cluster id."""
    if node.formatted:
        return node
    existing = existing_cluster_id(settings)
    node = replace(node, cluster_id=existing or node.cluster_id)
    write_node(settings, node)
    if not existing:
        tool = ("kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", node.cluster_id)
        command = [*java_command(settings, java), *tool, "-c", "server.properties"]
        done = subprocess.run(
            command, cwd=kafka_path(settings), capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode != 0:
            what = f"Kafka could not format its storage in {data_path(settings)}; the broker was not started"
            raise Terminal(f"{what}\n{done.stdout}{done.stderr}", code="storage-not-formatted")
    return replace(node, formatted=True)


def existing_cluster_id(settings: Settings) -> str:
    """Return the cluster id that Kafka wrote into its storage, "" before the first format."""
    path = data_path(settings) / "meta.properties"
    match = re.search(r"^cluster\.id=(\S+)$", path.read_text(), re.MULTILINE) if path.exists() else None
    return match.group(1) if match else ""


def java_command(settings: Settings, java: Java) -> list[str]:
    """Return Java with the flags and class path of the broker's JVMs, without a main class."""
    logging = f"-Dlog4j2.configurationFile={(CONFIGURATION / 'log4j2.properties').as_uri()}"
    own = [f"-Xmx{settings.broker_memory}", f"-Djava.io.tmpdir={temporary_path(settings)}", logging]
    return [str(java.path), *JVM, *LIMITS, *own, "-cp", f"{settings.jars / 'broker'}/*"]


def broker_command(settings: Settings, java: Java) -> list[str]:
    """Return the broker's command line; its working folder is `<state>/kafka`."""
    return [*java_command(settings, java), "kafka.Kafka", "server.properties"]


def answers(run: RunFile) -> bool:
    """Return whether this broker answers at its address, not another one that took the port."""
    if not is_open(int(run.extra["port"])):
        return False
    try:
        return cluster_id(str(run.extra["bootstrap"]), timeout=5) == str(run.extra["cluster_id"])
    except BrokerUnreachable:
        return False
