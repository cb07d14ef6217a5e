"""A broker of the tools in this folder as a process: format its storage, start it, wait until it listens."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from include.ground.java import find_java
from include.ground.ports import is_open
from include.ground.processes import Waiting, cpu_steps, file_size
from include.ground.settings import Settings

PROPERTIES = "server.properties"
# Tools for trying Kafka out, several on one machine: a small collector, no optimising compiler.
JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def java_command(settings: Settings) -> list[str]:
    """Return Java with the class path of a broker, without a main class. Raises JavaMissing."""
    java = find_java(os.environ).path
    return [str(java), f"-Xmx{settings.broker_memory}", *JVM, "-cp", f"{settings.jars / 'broker'}/*"]


def format_storage(folder: Path, settings: Settings, cluster: str, *more: str) -> None:
    """Format the storage that the properties in `folder` name, for the cluster of this id."""
    tool = ("kafka.tools.StorageTool", "format", "-t", cluster, "-c", PROPERTIES, *more)
    subprocess.run([*java_command(settings), *tool], cwd=folder, check=True, capture_output=True, timeout=120)


def start_broker(folder: Path, settings: Settings) -> subprocess.Popen[bytes]:
    """Start the broker whose properties and storage are in `folder`; it listens later."""
    with (folder / "log.txt").open("ab") as log:
        command = [*java_command(settings), "kafka.Kafka", PROPERTIES]
        return subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def await_open(process: subprocess.Popen[bytes], folder: Path, addresses: Sequence[tuple[str, int]]) -> None:
    """Wait until the broker listens. Raises RuntimeError with its log, NoProgress."""
    log = folder / "log.txt"

    def listens() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"the broker ended with {process.returncode}: {log.read_text()[-2000:]}")
        return all(is_open(port, host=host) for host, port in addresses)

    Waiting("the broker", lambda: (file_size(log), cpu_steps([process.pid]))).holds(listens)
